#!/usr/bin/env python3
"""A long sequence trains on four workers within a memory in which no plan that keeps it whole fits.

    long_sequence.py PIPESHARD [--tokens 32768] [--work DIR]

Exports a small Llama (PyTorch, transformers) for one sequence, and plans it for four devices within --memory: half of what a
device needs that has all of the sequence (four stages: the least of their largest). PASS: pipelines are refused for want of
memory (83), `--method auto` finds a plan, in which attention's queries are cut, its workers allocate no more, and `validate`
finds it equal to one device. 32,768 tokens take two minutes on two cores.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

TOO_LITTLE_MEMORY = 83


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeshard")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--work", default=None, help="where the files go; default: a folder that is removed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as removed:
        work = options.work or removed
        os.makedirs(work, exist_ok=True)
        check(options, work)
    print(f"PASS: {options.tokens} tokens on four workers")


def check(options, work):
    model, plan, told = (os.path.join(work, name) for name in ("llama.onnx", "plan", "told.json"))
    run([sys.executable, "-B", "tools/export/export.py", "llama", "--seq", str(options.tokens), "--layers", "2", "--output", model])
    planning = [options.pipeshard, "plan", model, "--cluster", "1x4", "--dim", "batch=1", "--microbatches", "1", "-o", plan]

    def allocated():
        run([options.pipeshard, "simulate", plan, "--json", told])
        with open(told, encoding="utf-8") as file:
            figures = json.load(file)
        return max(map(sum, zip(figures["arena_bytes"], figures["constant_bytes"])))

    run(planning)
    whole = allocated()
    memory = whole // 2
    run([*planning, "--memory", str(memory)], code=TOO_LITTLE_MEMORY)
    run([*planning, "--stages", "uniform:1", "--method", "auto", "--memory", str(memory)])
    parts = allocated()
    print(f"a device with the whole sequence allocates {whole / 1e6:.0f} MB, with its part {parts / 1e6:.0f} MB of {memory / 1e6:.0f}")
    explained = run([options.pipeshard, "explain", plan, "--most", "10000"])
    require(parts <= memory, "a worker allocates more than --memory")
    chosen = re.findall(r"^(\S*attention\S*/AttentionGrad) +(.*?)  ", explained, re.MULTILINE)
    require(len(chosen) == 2 and all(re.search(r":i\b", choice) for _, choice in chosen), f"queries are not cut: {chosen}")
    said = run([options.pipeshard, "validate", plan])
    print(said.strip().splitlines()[-1])


def run(command, code=0):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != code:
        sys.exit(f"FAIL: {' '.join(command)}: exit code {done.returncode}, expected {code}\n{done.stdout}{done.stderr}")
    return done.stdout


def require(condition, otherwise):
    if not condition:
        sys.exit(f"FAIL: {otherwise}")


if __name__ == "__main__":
    main()
