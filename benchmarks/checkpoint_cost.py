#!/usr/bin/env python3
"""What checkpoints cost a run, and how soon it goes on from one.

    checkpoint_cost.py PIPESHARD MODEL [--dim NAME=N ...] [--cluster 1x2] [--stages STAGES] [--steps N] [--every 50] [--rounds N] [--work DIR]

Trains the same plan (Adam) by turns without and with a checkpoint after half of its steps, and prints

- what it costs: how much longer the steps from then on took in all than as many of the runs without, in seconds and in percent of
  --every steps;
- from the last step to the end of the command, which saves once more: all that a checkpoint takes, with nothing beside it;
- how long the same command, given again, needs until its first step begins (files are warm).

`pipeshard plan ... export.py gpt2 --size full` is the model that numbers in docs/training-results.md are of.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time


class Runs:
    def __init__(self, given, work):
        self.given, self.saved, self.plan, self.log = given, *(os.path.join(work, name) for name in ("saved", "plan", "log"))
        options = [text for dimension in given.dim for text in ("--dim", dimension)]
        if given.stages:
            options += ["--stages", given.stages]
        subprocess.run([given.pipeshard, "plan", given.model, "--cluster", given.cluster, "--optimizer", "adam:lr=1e-5", *options, "-o",
                        self.plan], check=True, stdout=subprocess.DEVNULL)

    def run(self, steps, *options):
        """When it began and ended, and the lines of its steps."""
        shutil.rmtree(self.log, ignore_errors=True)
        begin = time.time()
        subprocess.run([self.given.pipeshard, "run", self.plan, "--steps", str(steps), "--log", self.log, *options], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.time()
        with open(os.path.join(self.log, "steps.jsonl"), encoding="utf-8") as file:
            return begin, end, [json.loads(line) for line in file]

    def checkpointed(self, steps, *options):
        return self.run(steps, "--checkpoint", self.saved, "--every", str(self.given.steps // 2), *options)


def second_half(lines):
    """Seconds from the end of the middle step to the end of the last one."""
    return lines[-1]["time"] - lines[len(lines) // 2 - 1]["time"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeshard")
    parser.add_argument("model")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--cluster", default="1x2")
    parser.add_argument("--stages", help="uniform:1: both workers hold all of it, and each saves half")
    parser.add_argument("--steps", type=int, default=16, help="an even number")
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints of a real run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work")
    given = parser.parse_args()
    work = given.work or tempfile.mkdtemp()
    runs = Runs(given, work)
    without, with_one, ends, resumed = [], [], [], []
    for _ in range(given.rounds):
        without.append(runs.run(given.steps)[2])
        shutil.rmtree(runs.saved, ignore_errors=True)
        _, end, lines = runs.checkpointed(given.steps)
        with_one.append(lines)
        ends.append(end - lines[-1]["time"])
        begin, _, lines = runs.checkpointed(given.steps + 1)
        resumed.append(lines[0]["time"] - lines[0]["seconds"] - begin)
    step = statistics.median(line["seconds"] for lines in without for line in lines[1:])
    cost = statistics.median(map(second_half, with_one)) - statistics.median(map(second_half, without))
    spread = max(map(second_half, without)) - min(map(second_half, without))
    newest = max(os.listdir(runs.saved))
    size = sum(os.path.getsize(os.path.join(runs.saved, newest, name)) for name in os.listdir(os.path.join(runs.saved, newest)))
    print(f"a step {step:.2f} s; a checkpoint of {size / 2**20:.0f} MiB costs {cost:.2f} s (half a run without: spread {spread:.2f} s): "
          f"{100 * cost / (given.every * step):.1f} % of {given.every} steps")
    end = statistics.median(ends)
    print(f"from the last step to the end, saved: {end:.2f} s; if nothing of it went on beside steps, {100 * end / (given.every * step):.1f} %")
    print(f"from the command to the first step after going on: median {statistics.median(resumed):.2f} s, worst {max(resumed):.2f} s")
    if not given.work:
        shutil.rmtree(work, ignore_errors=True)


main()
