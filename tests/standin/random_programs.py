#!/usr/bin/env python3
"""Programs of random shape and schedule give the same bytes, however long who waits for whom.

    tests/standin/random_programs.py BUILD [--programs N] [--first SEED] [--models mlp gpt2 ...] [--seconds S] [--parallel P]

A seed is a plan: an example on 2 to 4 workers with stages, schedule, microbatches, sharding, recomputation, buckets,
receives and optimizer drawn by it (what `plan` refuses is drawn again). Its programs run two steps on the stand-in of
NVIDIA's libraries: through the host's memory, by NCCL with room for one of its kernels, and by CUDA IPC; each lazily
(nothing runs before it must) and eagerly (a thread per stream, random pauses). All six leave the same bytes, none waits for
ever, and nothing is reported.

Exit code 1 when one of these is not so; the line has the plan's options. A thousand take half an hour of two
processors.
"""
import argparse
import concurrent.futures
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

from reported_run import four_gpus, run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LONGEST = 120  # seconds of one run; most take one
SCHEDULES = ["sequential", "gpipe", "1f1b", "1f1b", "eager-1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-h2", "interleaved-zb",
             "dual-pipe-v"]
KINDS = [(transport, mode) for transport in ("staged", "nccl", "ipc") for mode in ("lazy", "eager")]


def drawn(chance, models):
    """A model and options of `plan`."""
    devices = chance.choice([2, 2, 3, 4, 4])
    stages = chance.choice([1, 2, 3, 4, 6])
    microbatches = chance.choice([1, 2, 3, 4, 6])
    rows = chance.choice([1, 2, 4])
    words = ["--cluster", "1x%d" % devices, "--stages", "uniform:%d" % stages, "--microbatches", microbatches,
             "--dim", "batch=%d" % (microbatches * rows * (devices if stages < devices else 1)),
             "--schedule", chance.choice(SCHEDULES),
             "--recompute", chance.choice(["never", "never", "always", "layers", "selective"]),
             "--overlap-receives", chance.choice(["on", "off"]),
             "--optimizer", chance.choice(["sgd:lr=0.1", "sgd:lr=0.1,momentum=0.9", "adam:lr=0.01"])]
    if stages < devices:
        words += ["--method", chance.choice(["auto", "data-parallel", "zero2", "zero3", "tensor-parallel"])]
        words += ["--bucket", chance.choice(["off", "256", "1KiB", "1MiB"])]
    if chance.random() < 0.2:
        words += ["--clip-norm", "1"]
    if chance.random() < 0.2:
        words += ["--accumulate", 2]
    return chance.choice(models), [str(word) for word in words]


class Machine:
    """The stand-in with four GPUs."""

    def __init__(self, build, seconds):
        self.pipeshard, self.end = os.path.join(build, "tools", "pipeshard"), time.monotonic() + seconds
        self.environment = four_gpus(build)

    def plan(self, seed, models, folder):
        """The words of a plan that is not refused; it is in folder/plan."""
        chance = random.Random(seed)
        while True:
            model, words = drawn(chance, models)
            command = [self.pipeshard, "plan", os.path.join(ROOT, "examples", model + ".onnx"), *words,
                       "-o", os.path.join(folder, "plan")]
            planned = subprocess.run(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if planned.returncode == 0:
                return "%s %s" % (model, " ".join(words))
            if planned.returncode not in (64, 65, 78):
                raise RuntimeError("plan %s %s: code %d: %s" % (model, " ".join(words), planned.returncode, planned.stderr))

    def left_by(self, folder, transport, mode):
        """What two steps leave, by file; the reason why there is nothing."""
        dump, log = os.path.join(folder, transport + mode), os.path.join(folder, "log")
        command = [self.pipeshard, "run", os.path.join(folder, "plan"), "--steps", "2", "--device", "cuda", "--transport",
                   transport, "--threads", "1", "--dump", dump]
        code, reports = run(command, dict(self.environment, STANDIN_MODE=mode), log, seconds=LONGEST)
        if code is None:
            return {}, "still under way after %d s" % LONGEST
        if code != 0 or reports:
            return {}, "code %d%s" % (code, "".join(": " + report for report in reports[:1]))
        left = {}
        for path, _, names in os.walk(dump):
            for name in names:
                with open(os.path.join(path, name), "rb") as file:
                    left[os.path.relpath(os.path.join(path, name), dump)] = file.read()
        return left, "" if left else "nothing is left"


def look_at(machine, models, seed):
    """None: no time was left. Else what the plan is, and what is wrong with it."""
    if time.monotonic() > machine.end:
        return None
    folder = tempfile.mkdtemp(prefix="pipeshard-random-")
    try:
        words = machine.plan(seed, models, folder)
        first = None
        for transport, mode in KINDS:
            left, wrong = machine.left_by(folder, transport, mode)
            if not wrong and first is not None and left != first:
                wrong = "other bytes in %s" % ", ".join(sorted(n for n in first.keys() | left.keys() if first.get(n) != left.get(n)))
            if wrong:
                return words, "%s, %s: %s" % (transport, mode, wrong)
            first = left
        return words, ""
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--models", nargs="+", default=["mlp"])
    parser.add_argument("--seconds", type=float, default=1e9, help="no new plan after so long")
    parser.add_argument("--parallel", type=int, default=os.cpu_count())
    options = parser.parse_args()
    machine = Machine(os.path.abspath(options.build), options.seconds)
    seeds = range(options.first, options.first + options.programs)
    done = failed = 0
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.parallel) as pool:
        for seed, found in zip(seeds, pool.map(lambda seed: look_at(machine, options.models, seed), seeds)):
            if found is None:
                continue
            done += 1
            words, wrong = found
            failed += bool(wrong)
            if wrong:
                print("seed %d: %s: %s" % (seed, words, wrong), flush=True)
            elif done % 50 == 0:
                left = (time.monotonic() - start) / done * (len(seeds) - done)
                print("%d of %d (%d %%), about %d min left" % (done, len(seeds), 100 * done // len(seeds), left // 60), flush=True)
    print("%d of %d programs left the same bytes every way%s" % (
        done - failed, done, "" if done == len(seeds) else "; %d left out for want of time" % (len(seeds) - done)))
    sys.exit(1 if failed or not done else 0)


if __name__ == "__main__":
    main()
