#!/usr/bin/env python3
"""Runs the fuzzer of the readers on every target, and adds up what was fuzzed.

  tests/fuzz/fuzz.py                          two processor minutes in all, over all targets
  tests/fuzz/fuzz.py --minutes 60 model plan  an hour over these two
  tests/fuzz/fuzz.py --summary                what all runs have done so far, by target

Without --fuzzer or --blind it builds the preset fuzz first (clang, libFuzzer, AddressSanitizer, UndefinedBehaviorSanitizer). --blind: a
fuzzer that any compiler makes (blind_fuzzer.cc): the same readers and mutations without a look at what they reach.

What is found stays: new inputs in FOLDER/TARGET, from which the next run goes on; those that end a reader in FOLDER/findings, each with
what was said. Such a one belongs into corpus/TARGET with the fix, where ctest replays it. FOLDER/record.tsv gets a line per target and run:
when, the commit, which fuzzer, processor seconds, executions, edges (code that was reached), inputs that are kept, and how it ended.
Exit code: 0; 1 when something was found; 77 without clang.
"""

import argparse
import collections
import csv
import glob
import os
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pipeshard")
COLUMNS = ["when", "commit", "fuzzer", "target", "processor_seconds", "executions", "edges", "inputs", "end"]
REASONS = re.compile(r"ERROR:|a bug:|not an Error:|runtime error:|ALARM")
LONGEST_INPUT = 65536
OF_MODELS = ("model", "preparation")  # go on from ONNX's node suite, too, where tools/setup.sh has put it: it has every operator
SECONDS_PER_INPUT = 20
MOST_STARTS = 8  # of a fuzzer that got too little of the processor


def build():
    if shutil.which("clang++") is None:
        print("skipped: there is no clang++ (Debian packages: clang libclang-rt-dev)")
        sys.exit(77)
    for command in (["cmake", "--preset", "fuzz", "-Wno-dev"], ["cmake", "--build", "--preset", "fuzz"]):
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return os.path.join(ROOT, "build/fuzz/tests/fuzz/pipeshard_fuzzer")


def commit():
    found = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--exclude=*"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "-"


def last_number(pattern, text, otherwise):
    found = re.findall(pattern, text)
    return found[-1] if found else otherwise


class Run:
    """Of one target."""

    def __init__(self, options, target, seconds):
        self.options, self.target, self.seconds = options, target, seconds
        self.starts = 0
        self.inputs = os.path.join(options.folder, target)
        self.findings = os.path.join(options.folder, "findings")
        self.slot = os.path.join(options.folder, f"{target}.input")
        self.log = os.path.join(options.folder, f"{target}.log")
        os.makedirs(self.inputs, exist_ok=True)
        os.makedirs(self.findings, exist_ok=True)
        # Without coverage as a guide, a run of seconds starts from the corpus alone.
        models = [] if options.blind or target not in OF_MODELS else glob.glob(os.path.join(CACHE, "onnx-*/share/suites/node/*/model.onnx"))
        for model in models:
            given = os.path.join(self.inputs, "suite_" + os.path.basename(os.path.dirname(model)))
            if not os.path.exists(given):
                shutil.copyfile(model, given)

    def seed(self):
        self.starts += 1
        return time.time_ns() % 2**31 if self.options.seed is None else self.options.seed + self.starts

    def command(self, slot, seconds):
        given = os.path.join(HERE, "corpus", self.target)
        if self.options.blind:
            return [self.options.blind, self.target, str(seconds), str(self.seed()), slot, given, self.inputs]
        # -max_total_time is the clock's: on a busy machine it is less of the processor
        return [self.options.fuzzer, self.inputs, given, f"-max_total_time={seconds}", f"-max_len={LONGEST_INPUT}", "-rss_limit_mb=4096",
                f"-timeout={SECONDS_PER_INPUT}", f"-artifact_prefix={self.findings}/{self.target}-", "-print_final_stats=1"]

    def run(self):
        """Until the processor has worked so long for it, or something was found."""
        used, executions, edges, end = 0.0, 0, "-", "clean"
        for _ in range(MOST_STARTS):
            seconds, code, said = self.start(max(1, round(self.seconds - used)))
            used += seconds
            executions += int(last_number(r"number_of_executed_units: (\d+)", said, "0"))
            edges = last_number(r"cov: (\d+)", said, edges)
            if code != 0:
                end = self.keep(said, code)
            if code != 0 or used > self.seconds - 1:
                break
        return {"target": self.target, "processor_seconds": f"{used:.1f}", "executions": str(executions), "edges": edges,
                "inputs": str(len(os.listdir(self.inputs))), "end": end}

    def start(self, seconds):
        # ONNX's library comes without the sanitizers' marks on containers. What UBSan says ends a run only where it is asked to.
        environment = {**os.environ, "PIPESHARD_FUZZ_TARGET": self.target,
                       "ASAN_OPTIONS": "detect_container_overflow=0:allocator_may_return_null=0",
                       "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
        before = os.times()
        with open(self.log, "wb") as out:
            code = subprocess.run(["nice", "-n", str(self.options.nice), *self.command(self.slot, seconds)], stdout=out, stderr=out,
                                  env=environment, check=False).returncode
        after = os.times()
        with open(self.log, encoding="utf-8", errors="replace") as file:
            said = file.read()
        return after.children_user + after.children_system - before.children_user - before.children_system, code, said

    def keep(self, said, code):
        name = os.path.join(self.findings, f"{self.target}-{time.time_ns()}")
        shutil.copyfile(self.log, name + ".log")
        if self.options.blind and os.path.exists(self.slot):
            with open(self.slot, "rb") as file:
                memory = file.read()
            size = int.from_bytes(memory[:8], "little")
            with open(name, "wb") as file:
                file.write(memory[8:8 + size])
        reason = next((line.strip() for line in said.splitlines() if REASONS.search(line)), f"ended with {code}")
        return f"{reason[:150]} (see {name}.log)"


def record_path(options):
    return os.path.join(options.folder, "record.tsv")


def record(options, rows):
    path = record_path(options)
    is_new = not os.path.exists(path)
    with open(path, "a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, delimiter="\t", lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def summary(options):
    totals = collections.defaultdict(lambda: {"seconds": 0.0, "executions": 0, "edges": 0, "found": 0})
    if not os.path.exists(record_path(options)):
        sys.exit(f"there is no {record_path(options)} yet")
    with open(record_path(options), encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            total = totals[row["target"]]
            total["seconds"] += float(row["processor_seconds"])
            total["executions"] += int(row["executions"]) if row["executions"].isdigit() else 0
            total["edges"] = max(total["edges"], int(row["edges"]) if row["edges"].isdigit() else 0)
            total["found"] += row["end"] != "clean"
    print(f"{'target':12} {'hours':>7} {'executions':>12} {'edges':>6} {'found':>6}")
    for target, total in sorted(totals.items()):
        print(f"{target:12} {total['seconds'] / 3600:7.2f} {total['executions']:12} {total['edges']:6} {total['found']:6}")
    print(f"{sum(total['seconds'] for total in totals.values()) / 3600:.2f} processor hours, "
          f"{sum(total['executions'] for total in totals.values())} executions, "
          f"{sum(total['found'] for total in totals.values())} runs that found something")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--minutes", type=float, default=2, help="of the processor, in all")
    parser.add_argument("--fuzzer", help="of the preset fuzz, built before")
    parser.add_argument("--blind", help="blind_fuzzer, built before")
    parser.add_argument("--folder", default=os.path.join(CACHE, "fuzz"))
    parser.add_argument("--nice", type=int, default=10)
    parser.add_argument("--seed", type=int, help="of --blind: the same changes again; without it others every time")
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    if options.summary:
        return summary(options)
    known = sorted(os.listdir(os.path.join(HERE, "corpus")))
    unknown = set(options.targets) - set(known)
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if not options.fuzzer and not options.blind:
        options.fuzzer = build()
    options.folder = os.path.abspath(options.folder)
    targets = options.targets or known
    seconds = max(1, round(options.minutes * 60 / len(targets)))
    name = "blind" if options.blind else "libFuzzer"
    about = {"when": time.strftime("%Y-%m-%dT%H:%M:%S"), "commit": commit(), "fuzzer": name}
    found = 0
    for target in targets:
        row = Run(options, target, seconds).run()
        record(options, [{**about, **row}])
        found += row["end"] != "clean"
        print(f"{target:12} {row['executions']:>9} executions, {row['edges']:>5} edges, {row['inputs']:>5} inputs kept, "
              f"{row['processor_seconds']:>7} s: {row['end']}", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
