#!/usr/bin/env python3
"""Whether two `pipeshard` programs write the same plan directories, byte for byte: the examples under several methods and schedules.

For changes of how plans are made and written that must change nothing of what is written. Each case is planned by --before, and by --after
on all processors and on one; every file of the three directories is compared.

    benchmarks/same_plans.py --before OLD/pipeshard --after build/dev/tools/pipeshard
    benchmarks/same_plans.py --after build/dev/tools/pipeshard                         # on one processor and on all

Exit code 1 if any differ; the files that do are named.
"""

import argparse
import itertools
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"

# model, options
CASES = [
    ("mlp", "--cluster 1x4 --stages uniform:4 --dim batch=16 --microbatches 4 --schedule gpipe"),
    ("mlp", "--cluster 2x4 --stages uniform:2 --dim batch=32 --microbatches 2 --last-batch 24"),
    ("mlp", "--cluster 2x4 --stages uniform:2 --dim batch=32 --microbatches 4 --method zero2"),
    ("mlp", "--cluster 2x4 --stages uniform:1 --dim batch=32 --microbatches 2 --method zero3 --clip-norm 1"),
    ("mlp", "--cluster 2x4 --stages uniform:2 --dim batch=32 --microbatches 2 --method exhaustive"),
    ("mlp", "--cluster 1x4 --stages uniform:2 --dim batch=16 --microbatches 1 --schedule pipedream"),
    ("mlp", "--cluster 1x2 --stages uniform:2 --dim batch=15 --microbatches 4"),
    ("gpt2", "--cluster 1x4 --stages uniform:4 --microbatches 4 --schedule 1f1b --optimizer adam"),
    ("gpt2", "--cluster 1x4 --stages uniform:2 --microbatches 4 --schedule zb-h1 --recompute always"),
    ("gpt2", "--cluster 1x4 --method megatron:1,2,2 --microbatches 4 --recompute always --optimizer adam"),
    ("gpt2", "--cluster 2x4 --method megatron:2,2,2 --microbatches 2 --overlap-receives on"),
    ("gpt2", "--cluster 1x2 --stages uniform:4 --schedule interleaved --microbatches 4"),
    ("gpt2", "--cluster 1x4 --stages uniform:1 --method zero3 --bucket 16KiB"),
    ("gpt2_torchscript", "--cluster 1x4 --stages uniform:2 --method auto --microbatches 2"),
    ("llama", "--cluster 1x4 --method megatron:1,2,2 --microbatches 2"),
    ("llama", "--cluster 1x4 --stages auto --optimizer adam"),
    ("llama", "--cluster 1x3 --stages uniform:3 --schedule gpipe"),
    ("resnet", "--cluster 1x4 --stages uniform:2 --microbatches 2"),
    ("resnet", "--cluster 1x2 --stages uniform:1 --method data-parallel"),
    ("resnet", "--cluster 1x3 --stages uniform:3 --schedule forward-only"),
]


def contents(folder: pathlib.Path) -> dict:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def planned(program: pathlib.Path, model: str, options: list[str], one_processor: bool) -> dict | str:
    """The files of the plan; or what the program said when it refused."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(program), "plan", str(EXAMPLES / f"{model}.onnx"), *options, "-o", "made.plan"]
        processor = min(os.sched_getaffinity(0))
        limit = (lambda: os.sched_setaffinity(0, {processor})) if one_processor else None
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, preexec_fn=limit)
        if done.returncode != 0:
            return f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
        return contents(pathlib.Path(folder) / "made.plan")


def differences(one, other) -> list[str]:
    if isinstance(one, str) or isinstance(other, str):
        return [] if one == other else [f"{one if isinstance(one, str) else 'a plan'} / {other if isinstance(other, str) else 'a plan'}"]
    return [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=pathlib.Path, help="left out: the program is compared with itself on one processor")
    parser.add_argument("--after", type=pathlib.Path, default=ROOT / "build/dev/tools/pipeshard")
    parser.add_argument("--only", default="", help="cases that have this text")
    options = parser.parse_args()
    before = options.before.resolve() if options.before else None
    after = options.after.resolve()
    failed = files = plans = 0
    for model, text in CASES:
        if options.only not in f"{model} {text}":
            continue
        ways = [(after, False), (after, True)]
        if before:
            ways.insert(0, (before, False))
        made = [planned(program, model, text.split(), alone) for program, alone in ways]
        found = sorted(set(itertools.chain.from_iterable(differences(made[0], other) for other in made[1:])))
        failed += bool(found)
        if isinstance(made[0], str):
            print(f"{'DIFFER' if found else 'same  '} {model} {text}: {made[0]}")
        else:
            plans += 1
            files += len(made[0])
            print(f"{'DIFFER' if found else 'same  '} {model} {text}: {len(made[0])} files" + "".join(f"\n         {name}" for name in found[:8]))
        sys.stdout.flush()
    print(f"{plans} plans, {files} files; {failed} cases differ")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
