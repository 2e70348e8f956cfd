#!/usr/bin/env python3
"""Runs the fuzzer of the readers on every target, and adds up what was fuzzed.

  tests/fuzz/fuzz.py                          two processor minutes in all, over all targets
  tests/fuzz/fuzz.py --minutes 60 model plan  an hour over these two
  tests/fuzz/fuzz.py --bring-home             what was reached and run, into the tree, to be committed
  tests/fuzz/fuzz.py --summary                what all runs have done so far, by target

Minutes are the processor's, whatever the clock says: `chrt -i 0 tests/fuzz/fuzz.py --minutes 600` takes what nobody else wants of it.
Targets take turns of a minute, those first that had least; SIGTERM ends the turn, which counts.

Without --fuzzer or --blind it builds the preset fuzz first (clang, libFuzzer, AddressSanitizer, UndefinedBehaviorSanitizer). --blind: a
fuzzer that any compiler makes (blind_fuzzer.cc): the same readers and mutations without a look at what they reach.

What is found stays: new inputs in FOLDER/TARGET, from which the next run goes on; those that end a reader in FOLDER/findings, each with
what was said. Such a one belongs into corpus/TARGET with the fix, where ctest replays it. FOLDER/record.tsv gets a line per target and run:
when, the commit, which fuzzer, processor seconds, executions, edges (code that was reached), inputs that are kept, and how it ended.
--bring-home adds libFuzzer's lines up in record.tsv beside this file, so that hours add up over machines, and puts the smallest of the inputs
that reach most edges into corpus/TARGET/kept.
Exit code: 0; 1 when something was found; 77 without clang.
"""

import argparse
import collections
import csv
import glob
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pipeshard")
COLUMNS = ["when", "commit", "fuzzer", "target", "processor_seconds", "executions", "edges", "inputs", "end"]
HOME_COLUMNS = ["target", "since", "until", "processor_seconds", "executions", "edges", "found"]
REASONS = re.compile(r"ERROR:|a bug:|not an Error:|runtime error:|ALARM")
LONGEST_INPUT = 65536
OF_MODELS = ("model", "preparation")  # go on from ONNX's node suite, too, where tools/setup.sh has put it: it has every operator
LONGEST_WAIT = 1200  # for one input, of the clock; fuzz_targets.cc has the limit of the processor
SECONDS_PER_TURN = 60
MOST_KEPT, MOST_KEPT_BYTES = 40, 128 * 1024  # of a target, in the tree


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


def corpus_of(options, target):
    return os.path.join(options.tree, "corpus", target)


def environment_of(target):
    # ONNX's library comes without the sanitizers' marks on containers. What UBSan says ends a run only where it is asked to.
    return {**os.environ, "PIPESHARD_FUZZ_TARGET": target, "ASAN_OPTIONS": "detect_container_overflow=0:allocator_may_return_null=0",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}


def last_number(pattern, text, otherwise):
    found = re.findall(pattern, text)
    return found[-1] if found else otherwise


def processor_seconds(process):
    """Of a child that runs, and of those that it has waited for."""
    try:
        with open(f"/proc/{process.pid}/stat", encoding="utf-8") as file:
            return sum(map(int, file.read().rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")
    except FileNotFoundError:
        return 0.0


class Run:
    """Of one target."""

    stopping = False  # no more turns

    def __init__(self, options, target, turn, seconds):
        self.options, self.target, self.turn, self.seconds = options, target, turn, seconds
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

    def command(self):
        given = corpus_of(self.options, self.target)
        if self.options.blind:
            seed = time.time_ns() % 2**31 if self.options.seed is None else self.options.seed + self.turn
            return [self.options.blind, self.target, str(self.seconds), str(self.options.executions), str(seed), self.slot, given, self.inputs]
        return [self.options.fuzzer, self.inputs, given, f"-max_len={LONGEST_INPUT}", "-rss_limit_mb=4096", f"-timeout={LONGEST_WAIT}",
                f"-artifact_prefix={self.findings}/{self.target}-", "-print_final_stats=1"]

    def run(self):
        """Until the processor has worked so long for it, or something was found."""
        before = os.times()
        code = self.start()
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        with open(self.log, encoding="utf-8", errors="replace") as file:
            said = file.read()
        return {"target": self.target, "processor_seconds": f"{used:.1f}",
                "executions": last_number(r"number_of_executed_units: (\d+)", said, "0"), "edges": last_number(r"cov: (\d+)", said, "-"),
                "inputs": str(len(os.listdir(self.inputs))), "end": "clean" if code == 0 else self.keep(said, code)}

    def start(self):
        asked_to_end = False
        with open(self.log, "wb") as out:
            command = ["nice", "-n", str(self.options.nice), *self.command()]
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment_of(self.target))
            while process.poll() is None:
                rest = self.seconds - processor_seconds(process)
                if not asked_to_end and (Run.stopping or (rest <= 0 and not self.options.blind)):
                    process.send_signal(signal.SIGUSR1)  # libFuzzer ends with the input that it is at
                    asked_to_end = True
                try:
                    process.wait(min(max(rest, 0.05), 1))  # it has one thread
                except subprocess.TimeoutExpired:
                    pass
        return 0 if asked_to_end and process.returncode == -signal.SIGUSR1 else process.returncode

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


def home_record_path(options):
    return os.path.join(options.tree, "record.tsv")


def record(options, rows):
    path = record_path(options)
    is_new = not os.path.exists(path)
    with open(path, "a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, delimiter="\t", lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def read_record(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def number(text):
    return int(text) if text.isdigit() else 0


def totals_by_target(options, of_fuzzers):
    """Of what is in the tree, and of the runs since."""
    totals = {row["target"]: {**row, **{key: number(row[key]) for key in HOME_COLUMNS[3:]}} for row in read_record(home_record_path(options))}
    for row in read_record(record_path(options)):
        if row["fuzzer"] not in of_fuzzers:
            continue
        day = row["when"][:10]
        total = totals.setdefault(row["target"], {**dict.fromkeys(HOME_COLUMNS, 0), "target": row["target"], "since": day})
        total["until"] = day
        total["processor_seconds"] += float(row["processor_seconds"])
        total["executions"] += number(row["executions"])
        total["edges"] = max(total["edges"], number(row["edges"]))
        total["found"] += row["end"] != "clean"
    return [total for _, total in sorted(totals.items())]


def summary(options):
    totals = totals_by_target(options, ("libFuzzer", "blind"))
    if not totals:
        sys.exit(f"there is no {home_record_path(options)} yet, nor {record_path(options)}")
    print(f"{'target':12} {'hours':>7} {'executions':>12} {'edges':>6} {'found':>6}")
    for total in totals:
        print(f"{total['target']:12} {total['processor_seconds'] / 3600:7.2f} {total['executions']:12} {total['edges']:6} {total['found']:6}")
    print(f"{sum(total['processor_seconds'] for total in totals) / 3600:.2f} processor hours, "
          f"{sum(total['executions'] for total in totals)} executions, {sum(total['found'] for total in totals)} runs that found something")


def reached_first(control):
    """Of libFuzzer's record of a merge: (edges that an input reached first, its size, its path), without those that were there before."""
    with open(control, encoding="utf-8") as file:
        lines = file.read().splitlines()
    count, before = int(lines[0]), int(lines[1])
    paths = lines[2:2 + count]
    edges = {int(words[1]): len(words) - 2 for words in map(str.split, lines[2 + count:]) if words[0] == "COV"}
    return [(edges[i], os.path.getsize(paths[i]), paths[i]) for i in range(before, count) if edges.get(i)]


def bring_corpus_home(options, target):
    corpus, kept, reached = corpus_of(options, target), os.path.join(corpus_of(options, target), "kept"), os.path.join(options.folder, target)
    if not os.path.isdir(reached):
        return
    with tempfile.TemporaryDirectory() as folder:
        given, control = os.path.join(folder, "given"), os.path.join(folder, "control")
        shutil.copytree(corpus, given, ignore=shutil.ignore_patterns("kept"))
        candidates = [path for path in (kept, reached) if os.path.isdir(path)]
        # counters of how often code runs are left out: edges alone are few enough for the tree
        command = [options.fuzzer, "-merge=1", f"-merge_control_file={control}", "-use_counters=0", f"-max_len={LONGEST_INPUT}",
                   f"-timeout={LONGEST_WAIT}", "-rss_limit_mb=4096", f"-artifact_prefix={folder}/", given, *candidates]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment_of(target))
        inputs, left = [], MOST_KEPT_BYTES
        for _, size, path in sorted(reached_first(control), key=lambda found: (-found[0], found[1])):
            if len(inputs) < MOST_KEPT and size <= left:
                with open(path, "rb") as file:
                    inputs.append(file.read())
                left -= size
    shutil.rmtree(kept, ignore_errors=True)
    if inputs:
        os.makedirs(kept)
    for content in inputs:
        with open(os.path.join(kept, hashlib.sha1(content).hexdigest()[:12]), "wb") as file:
            file.write(content)
    print(f"{target:12} {len(inputs):3} inputs, {MOST_KEPT_BYTES - left:7} bytes", flush=True)


def bring_home(options, targets):
    for target in targets:
        bring_corpus_home(options, target)
    totals = totals_by_target(options, ("libFuzzer",))
    with open(home_record_path(options), "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, HOME_COLUMNS, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        for total in totals:
            writer.writerow({**total, "processor_seconds": round(total["processor_seconds"])})
    if os.path.exists(record_path(options)):
        os.replace(record_path(options), record_path(options) + ".home")  # counted


def take_turns(options, targets):
    """True when something was found."""
    name = "blind" if options.blind else "libFuzzer"
    seconds = max(1, round(options.minutes * 60 / len(targets)))
    about, found = {"commit": commit(), "fuzzer": name}, False
    for turn, at in enumerate(range(0, seconds, SECONDS_PER_TURN), 1):
        done = {total["target"]: total["processor_seconds"] for total in totals_by_target(options, (name,))}
        for target in sorted(targets, key=lambda target: done.get(target, 0)):
            if Run.stopping:
                return found
            row = Run(options, target, turn, min(SECONDS_PER_TURN, seconds - at)).run()
            record(options, [{"when": time.strftime("%Y-%m-%dT%H:%M:%S"), **about, **row}])
            found = found or row["end"] != "clean"
            print(f"{target:12} {row['executions']:>9} executions, {row['edges']:>5} edges, {row['inputs']:>5} inputs kept, "
                  f"{row['processor_seconds']:>7} s: {row['end']}", flush=True)
    return found


def end_turn(*_):
    Run.stopping = True


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--minutes", type=float, default=2, help="of the processor, in all")
    parser.add_argument("--fuzzer", help="of the preset fuzz, built before")
    parser.add_argument("--blind", help="blind_fuzzer, built before")
    parser.add_argument("--folder", default=os.path.join(CACHE, "fuzz"))
    parser.add_argument("--tree", default=HERE, help="has corpus/ and record.tsv")
    parser.add_argument("--nice", type=int, default=10)
    parser.add_argument("--seed", type=int, help="of --blind: the same changes again; without it others every time")
    parser.add_argument("--executions", type=int, default=2**62, help="of --blind: at most so many for a target and turn, so that a seed does the "
                        "same on machines of any speed")
    parser.add_argument("--bring-home", action="store_true")
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    options.folder = os.path.abspath(options.folder)
    known = sorted(os.listdir(os.path.join(options.tree, "corpus")))
    unknown = set(options.targets) - set(known)
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if options.bring_home and (options.blind or options.targets):
        parser.error("--bring-home is for all targets, and needs libFuzzer")
    return options, options.targets or known


def main():
    options, targets = parse_options()
    if options.summary:
        return summary(options)
    if not options.fuzzer and not options.blind:
        options.fuzzer = build()
    if options.bring_home:
        return bring_home(options, targets)
    signal.signal(signal.SIGTERM, end_turn)
    return 1 if take_turns(options, targets) else 0


if __name__ == "__main__":
    sys.exit(main())
