#!/usr/bin/env python3
"""Every wait of the CUDA workers is needed, and missed when it is gone.

    tests/standin/dropped_waits.py BUILD [--jobs mlp gpt2:zero3:nccl ...] [--sample N] [--seed S] [--seconds S]

Each job runs on the stand-in of NVIDIA's libraries, which lists the waits that each rank makes: those of streams for
events, and those of the host for streams, asked for at once or by asking again and again (waits.h). Then each is left
out, alone, in a run of its own, which ends as soon as the stand-in has reported something: it must. A wait that orders
nothing that is not ordered without it is implied: it is told of, and not left out.

A job is an example on four workers, MODEL[:WAY[:TRANSPORT]]: a pipeline of four (1f1b) or zero3; through the host's
memory (staged) or by nccl, with room for one kernel of NCCL. It has two steps, so that what a step leaves to the next
one is seen. A step cannot know that another one follows: what of the first step is not missed is left out again in a
job of one step, behind which nobody waits any more (PIPESHARD_UNSEEN_END: no worker looks at its weights then).

--sample: so many of each job's, by chance, the same for the same --seed. --seconds: no new run after so long; what was
left out is said. Exit code 1 when the removal of one goes unnoticed.
"""
import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time

from reported_run import four_gpus, run

WAIT = re.compile(r"^rank (-?\d+) wait (\d+) (needed|implied)( dropped)?: (.*)$")
WAYS = {"1f1b": ["--stages", "uniform:4", "--schedule", "1f1b", "--microbatches", "2"],
        "zero3": ["--stages", "uniform:1", "--method", "zero3"]}
ALL = ["%s:1f1b:%s" % (model, transport) for model in ("mlp", "gpt2", "llama", "resnet")
       for transport in ("staged", "nccl")] + ["gpt2:zero3:staged", "gpt2:zero3:nccl"]


class Job:
    """A planned model, run on the stand-in."""

    def __init__(self, build, folder, name):
        model, way, transport = (name.split(":") + ["1f1b", "staged"][name.count(":"):])[:3]
        self.name, self.folder, self.transport = name, folder, transport
        self.pipeshard = os.path.join(build, "tools", "pipeshard")
        self.plan = os.path.join(folder, name.replace(":", "-") + ".plan")
        self.environment = dict(four_gpus(build), STANDIN_MODE="lazy", PIPESHARD_UNSEEN_END="1")
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        subprocess.run(
            [self.pipeshard, "plan", os.path.join(root, "examples", model + ".onnx"), "--cluster", "1x4", *WAYS[way],
             "-o", self.plan], env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def run(self, steps, dropped=None):
        """The exit code, the waits of all ranks, and what was reported. With `dropped` it ends with the first report:
        no code."""
        waits, log = os.path.join(self.folder, "waits"), os.path.join(self.folder, "log")
        open(waits, "w").close()
        environment = dict(self.environment, STANDIN_WAITS=waits)
        if dropped:
            environment["STANDIN_DROP"] = "%d:%d" % dropped
        command = [self.pipeshard, "run", self.plan, "--steps", str(steps), "--device", "cuda", "--transport",
                   self.transport, "--threads", "1"]
        code, reports = run(command, environment, log, until=bool if dropped else None)
        with open(waits) as file:
            found = [WAIT.match(line) for line in file]
        return code, [(int(m[1]), int(m[2]), m[3], bool(m[4]), m[5]) for m in found if m], reports

    def misses(self, steps, wait):
        """What is reported when this wait is gone."""
        code, made, reports = self.run(steps, wait[:2])
        if not any(dropped for _, _, _, dropped, _ in made):
            sys.exit("%s, rank %d: wait %d was not left out (code %s)" % (self.name, *wait[:2], code))
        return reports


def look_at(job, sample, chance, deadline):
    """Removals that were tried and reported; waits that are implied, and those that time left out."""
    waits, of_first = [], set()
    for steps in (2, 1):
        code, waits_of, reports = job.run(steps)
        if code != 0 or reports or not waits_of:
            sys.exit("%s: code %s with all waits: %s" % (job.name, code, reports[:3]))
        waits = waits or waits_of
        of_first = {wait[:2] for wait in waits_of}
    implied = [w for w in waits if w[2] == "implied"]
    for rank, number, _, _, what in implied[:20]:
        print("%s, rank %d, wait %d: implied: %s" % (job.name, rank, number, what))
    needed = [w for w in waits if w[2] == "needed"]
    chosen = chance.sample(needed, min(sample, len(needed)))
    tried = missed = 0
    for wait in chosen:
        if time.monotonic() > deadline:
            break
        tried += 1
        reports = job.misses(2, wait)
        if not reports and wait[:2] in of_first:
            reports = job.misses(1, wait)
        missed += bool(reports)
        print("%s, rank %d, wait %d, %s: %s" % (job.name, wait[0], wait[1], wait[4], reports[0][:150] if reports else
                                                "NOBODY MISSES IT"), flush=True)
    print("%s: %d waits are needed, %d implied; %d of %d removals reported" % (
        job.name, len(needed), len(implied), missed, tried), flush=True)
    return tried, missed, len(implied), len(chosen) - tried


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--jobs", nargs="+", default=ALL)
    parser.add_argument("--sample", type=int, default=sys.maxsize)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    totals = [0, 0, 0, 0]
    with tempfile.TemporaryDirectory(prefix="pipeshard-waits-") as folder:
        for name in options.jobs:
            job = Job(os.path.abspath(options.build), folder, name)
            found = look_at(job, options.sample, random.Random(options.seed), deadline)
            totals = [a + b for a, b in zip(totals, found)]
    tried, missed, implied, left_out = totals
    print("%d of %d removals reported (%.1f%%); %d waits implied%s" % (
        missed, tried, 100 * missed / max(1, tried), implied,
        "; %d left out for want of time" % left_out if left_out else ""))
    sys.exit(1 if missed < tried or tried == 0 else 0)


if __name__ == "__main__":
    main()
