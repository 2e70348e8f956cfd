#!/usr/bin/env python3
"""Every integer attribute of every operator with a hostile number in it: 0, -1, 2^31, 2^62, element by element, in the models of ONNX's
node suite. Whatever ONNX thinks of the number, `pipeshard validate` must run the model, or refuse it with a sentence: exit code 70, a
signal, or more than --seconds is a fault. (1: where the number makes sense, but the results differ: also a fault.)

  tests/onnx_import/attribute_sweep.py --pipeshard build/dev/tools/pipeshard --suites ~/.cache/pipeshard/onnx-1.19.1/share/suites

`--sample N` tries every Nth case, `--jobs` so many at a time. Needs Python's onnx. Exit code: 0; 1 with the faults printed; 77 where
something is missing.
"""

import argparse
import collections
import concurrent.futures
import os
import subprocess
import sys
import tempfile

try:
    import onnx
except ImportError:
    print("skipped: there is no onnx for Python (tools/setup.sh --tests installs it)")
    sys.exit(77)

HOSTILE = [0, -1, 1 << 31, 1 << 62]


def places(model):
    """(node, attribute, element or None) of the integers in the top graph."""
    for n, node in enumerate(model.graph.node):
        for a, attribute in enumerate(node.attribute):
            if attribute.type == onnx.AttributeProto.INT:
                yield n, a, None
            elif attribute.type == onnx.AttributeProto.INTS:
                yield from ((n, a, i) for i in range(len(attribute.ints)))


def cases(suites):
    """One (operator, attribute, element, number) of each kind: the first model of the suite that has it."""
    seen = set()
    folder = os.path.join(suites, "node")
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name, "model.onnx")
        if not os.path.exists(path):
            continue
        model = onnx.load(path)
        for n, a, i in places(model):
            node = model.graph.node[n]
            for number in HOSTILE:
                kind = (node.op_type, len(node.input), node.attribute[a].name, i, number)
                if kind not in seen:
                    seen.add(kind)
                    yield kind, path, (n, a, i, number)


def hostile(path, place):
    model = onnx.load(path)
    n, a, i, number = place
    attribute = model.graph.node[n].attribute[a]
    if i is None:
        attribute.i = number
    else:
        attribute.ints[i] = number
    for output in model.graph.output:  # of what shape, the number decides
        output.type.tensor_type.ClearField("shape")
    return model.SerializeToString()


def run(options, case):
    kind, path, place = case
    with tempfile.TemporaryDirectory(prefix="sweep.") as folder:
        model = os.path.join(folder, "model.onnx")
        with open(model, "wb") as file:
            file.write(hostile(path, place))
        command = [options.pipeshard, "validate", model, "--schedule", "forward-only", "--cluster", "1x1", "--steps", "1"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=options.seconds, cwd=folder,
                                  check=False)
        except subprocess.TimeoutExpired:
            return kind, path, "no end", ""
        return kind, path, done.returncode, done.stderr.strip().splitlines()[-1:] or [""]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeshard", required=True)
    parser.add_argument("--suites", required=True)
    parser.add_argument("--sample", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    options.pipeshard = os.path.abspath(options.pipeshard)
    chosen = list(cases(options.suites))[:: options.sample]
    outcomes, faults = collections.Counter(), 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for kind, path, code, said in pool.map(lambda case: run(options, case), chosen):
            outcomes[code] += 1
            if code == "no end" or code < 0 or code in (1, 70) or code > 128:
                faults += 1
                print(f"FAULT {code}: {kind} in {os.path.basename(os.path.dirname(path))}: {said}", flush=True)
    print(f"{len(chosen)} cases; exit codes " + ", ".join(f"{code}: {count}" for code, count in sorted(outcomes.items(), key=str)))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
