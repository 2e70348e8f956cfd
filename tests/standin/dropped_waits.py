#!/usr/bin/env python3
"""Every wait of the CUDA workers is needed, and missed when it is gone.

    tests/standin/dropped_waits.py BUILD [--models mlp gpt2] [--sample N] [--seconds S]

Each model runs as a pipeline of four workers (1f1b) on the stand-in of NVIDIA's libraries, which lists the waits
that each rank makes: those of streams for events, and those of the host for streams (waits.h). Then each is left
out, alone, in a run of its own, and the stand-in must report it. A wait that orders nothing that is not ordered
without it is implied: it is told of, and not left out.

The last wait of each step of a rank may go unnoticed, and is counted apart: a step's end waits for all that it gave,
for those that read its times and errors, or work on the same memory behind it (evaluations); in these jobs nobody
does, and where the step has no wrong data to look for, the next step's first wait orders all the same. Which these
are, a run of one step more tells: by so many waits as a rank makes in it they lie apart, and the last of all is one.

--sample: so many of them, evenly spread. --seconds: no new run after so long; what was left out is said.
Exit code 1 when the removal of any other goes unnoticed.
"""
import argparse
import collections
import os
import re
import subprocess
import sys
import tempfile
import time

WAIT = re.compile(r"^rank (-?\d+) wait (\d+) (needed|implied)( dropped)?: (.*)$")
STEPS = 2


class Job:
    """A planned model, run on the stand-in."""

    def __init__(self, build, folder, model):
        self.model, self.folder = model, folder
        self.pipeshard = os.path.join(build, "tools", "pipeshard")
        self.plan = os.path.join(folder, model + ".plan")
        standin = os.path.join(build, "tests", "standin")
        self.environment = dict(
            os.environ, LD_LIBRARY_PATH=standin, STANDIN_TWINS=os.path.join(standin, "libstandin_twin.so"),
            PIPESHARD_CUDA_MODULE=os.path.join(build, "tools", "pipeshard_cuda.so"), PIPESHARD_PROFILE="off")
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        subprocess.run(
            [self.pipeshard, "plan", os.path.join(root, "examples", model + ".onnx"), "--cluster", "1x4", "--stages",
             "uniform:4", "--schedule", "1f1b", "--microbatches", "2", "-o", self.plan],
            env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def run(self, dropped=None, steps=STEPS):
        """The exit code, the waits of all ranks, and what was reported."""
        waits, log = os.path.join(self.folder, "waits"), os.path.join(self.folder, "log")
        for file in (waits, log):
            open(file, "w").close()
        environment = dict(self.environment, STANDIN_WAITS=waits, STANDIN_LOG=log)
        if dropped:
            environment["STANDIN_DROP"] = "%d:%d" % dropped
        try:
            code = subprocess.run(
                [self.pipeshard, "run", self.plan, "--steps", str(steps), "--device", "cuda", "--share-devices",
                 "--threads", "1"],
                env=environment, timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE).returncode
        except subprocess.TimeoutExpired:
            code = None
        found = [WAIT.match(line) for line in open(waits)]
        reports = [line.strip() for line in open(log) if line.startswith("stand-in: ")]
        return code, [(int(m[1]), int(m[2]), m[3], bool(m[4]), m[5]) for m in found if m], reports


def spread(items, count):
    """So many of them, the first and the last among them."""
    if count >= len(items):
        return items
    return [items[round(i * (len(items) - 1) / max(1, count - 1))] for i in range(count)]


def step_ends(waits, longer):
    """(rank, number) of the last wait of every step; `longer`: the waits of a run of one step more."""
    count, count_longer = (collections.Counter(wait[0] for wait in of_run) for of_run in (waits, longer))
    return {(rank, count[rank] - step * (count_longer[rank] - count[rank])) for rank in count for step in range(STEPS)}


def look_at(job, sample, deadline):
    """Removals that were tried, that were reported, that end a step and were not; waits that are implied, and those
    that time left out."""
    code, waits, reports = job.run()
    if code != 0 or reports or not waits:
        sys.exit("%s: code %s with all waits: %s" % (job.model, code, reports[:3]))
    may_end = step_ends(waits, job.run(steps=STEPS + 1)[1])
    implied = [w for w in waits if w[2] == "implied"]
    for rank, number, _, _, what in implied[:20]:
        print("%s, rank %d, wait %d: implied: %s" % (job.model, rank, number, what))
    chosen = spread([w for w in waits if w[2] == "needed"], sample)
    tried = missed = ends = 0
    for rank, number, _, _, what in chosen:
        if time.monotonic() > deadline:
            break
        tried += 1
        code, made, reports = job.run((rank, number))
        if not any(w[3] for w in made):
            sys.exit("%s, rank %d: wait %d was not left out" % (job.model, rank, number))
        if reports:
            missed += 1
            continue
        ends += (rank, number) in may_end
        print("%s, rank %d, wait %d%s: nobody misses it (code %s): %s" % (
            job.model, rank, number, ", which ends a step" if (rank, number) in may_end else "", code, what))
    print("%s: %d waits are needed, %d implied; %d of %d removals reported, %d that end a step are not" % (
        job.model, len(waits) - len(implied), len(implied), missed, tried, ends), flush=True)
    return tried, missed, ends, len(implied), len(chosen) - tried


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--models", nargs="+", default=["mlp", "gpt2", "llama", "resnet"])
    parser.add_argument("--sample", type=int, default=sys.maxsize)
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    totals = [0, 0, 0, 0, 0]
    with tempfile.TemporaryDirectory(prefix="pipeshard-waits-") as folder:
        for model in options.models:
            job = Job(os.path.abspath(options.build), folder, model)
            totals = [a + b for a, b in zip(totals, look_at(job, options.sample, deadline))]
    tried, missed, ends, implied, left_out = totals
    print("%d of %d removals reported (%.1f%%), %d that end a step are not; %d waits implied%s" % (
        missed, tried, 100 * missed / max(1, tried), ends, implied,
        "; %d left out for want of time" % left_out if left_out else ""))
    sys.exit(1 if missed + ends < tried or missed == 0 else 0)


if __name__ == "__main__":
    main()
