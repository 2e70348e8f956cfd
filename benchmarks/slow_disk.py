#!/usr/bin/env python3
"""What a slow disk costs a run: rows are read beside the step before.

    slow_disk.py PIPESHARD SLOW_READS [--model MODEL] [--steps N] [--rounds N]

PIPESHARD and SLOW_READS (libslow_reads.so) are of one build. One worker trains on a file of tokens, two reads a step (ids and labels).
Each read is made to wait: for nothing, a quarter, half, and all of the time that a step takes without waiting. Printed are the median
time of a step as a ratio to that without waiting, in the same run, beside the two limits: reads all beside the steps (the longer of the two), and
one after the other (their sum). The first tenth of the steps is left out.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile


def median_step(arguments, plan, data, microseconds, log):
    environment = {**os.environ, "LD_PRELOAD": os.path.abspath(arguments.slow_reads), "SLOW_READS_FILE": data,
                   "SLOW_READS_US": str(microseconds)}
    subprocess.run([arguments.pipeshard, "run", plan, "--data", data, "--steps", str(arguments.steps), "--threads", "1", "--log", log],
                   check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(os.path.join(log, "steps.jsonl"), encoding="utf-8") as file:
        seconds = [json.loads(line)["seconds"] for line in file]
    return statistics.median(seconds[len(seconds) // 10:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pipeshard")
    parser.add_argument("slow_reads")
    parser.add_argument("--model", default="examples/gpt2.onnx")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        data, plan = os.path.realpath(os.path.join(work, "tokens.u16")), os.path.join(work, "plan")
        numbers = random.Random(0)
        with open(data, "wb") as file:
            file.write(b"".join(numbers.randrange(256).to_bytes(2, "little") for _ in range(1 << 16)))
        subprocess.run([arguments.pipeshard, "plan", arguments.model, "--dim", "batch=64", "--microbatches", "1", "--cluster", "1x1",
                        "--data", data, "--drop-last", "-o", plan], check=True, stdout=subprocess.DEVNULL)
        logs = iter(range(1000))
        shares = (0, 0.25, 0.5, 1)
        found = {share: [] for share in shares}
        alone = median_step(arguments, plan, data, 0, os.path.join(work, f"log{next(logs)}"))
        for _ in range(arguments.rounds):
            for share in shares:
                found[share].append(median_step(arguments, plan, data, round(share * alone * 1e6), os.path.join(work, f"log{next(logs)}")))
        base = statistics.median(found[0])
        print(f"a step without waiting: {base * 1e3:.1f} ms")
        print("reads of a step take   step   beside it   behind it   (ratios to a step without waiting)")
        for share in shares[1:]:
            reads = 2 * share * alone / base
            print(f"{reads:20.2f} {statistics.median(found[share]) / base:6.2f} {max(1, reads):11.2f} {1 + reads:11.2f}")


if __name__ == "__main__":
    main()
