#!/usr/bin/env python3
"""Every __syncthreads of the CUDA kernels is needed, and missed when it is gone.

    tests/standin/dropped_barriers.py BUILD [--sample N]

The kernels' tests run on the stand-in, which lists the barriers that threads come to, by source line
(waits.h). All that the sources have must be among them. Then each is left out, alone, in a run of its own,
in all kernels that have it, and the stand-in must report a race. --sample: so many of them, evenly spread.
Exit code 1 when the removal of one goes unnoticed.
"""
import argparse
import glob
import os
import re
import sys
import tempfile

from kernel_tests import ROOT, KernelTests, spread


def written():
    """FILE:LINE of all in the sources."""
    found = set()
    for pattern in ("*.cu", "*.h"):
        for name in glob.glob(os.path.join(ROOT, "runtime", "**", pattern), recursive=True):
            with open(name) as file:
                found |= {"%s:%d" % (os.path.relpath(name, ROOT), number)
                          for number, line in enumerate(file, 1) if "__syncthreads();" in line}
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--sample", type=int, default=sys.maxsize)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pipeshard-barriers-") as folder:
        tests = KernelTests(os.path.abspath(options.build), folder)
        listed = os.path.join(folder, "barriers")
        tests.run({"STANDIN_BARRIERS": listed})
        with open(listed) as file:
            barriers = {os.path.relpath(path, ROOT): path for path in file.read().split()}
        if barriers.keys() != written():
            sys.exit("no test comes to these: %s" % ", ".join(sorted(written() ^ barriers.keys())))
        chosen = spread(sorted(barriers), options.sample)
        missed = 0
        for name in chosen:
            is_race = re.compile("race").search
            races = [r for r in tests.run({"STANDIN_DROP_BARRIER": barriers[name]}, until=is_race) if is_race(r)]
            missed += bool(races)
            print("%s: %s" % (name, races[0][:120] if races else "nobody misses it"), flush=True)
    print("%d barriers; %d of %d removals reported" % (len(barriers), missed, len(chosen)))
    sys.exit(1 if missed < len(chosen) else 0)


if __name__ == "__main__":
    main()
