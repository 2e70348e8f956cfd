#!/usr/bin/env python3
"""Predicted against measured: the step time and memory that `simulate` foresees with a profile, and what `run` measures.

    benchmarks/predicted_measured.py                 builds build/release, measures all examples over one and two workers
    benchmarks/predicted_measured.py --only gpt2     some of them

For every plan: `pipeshard profile --model PLAN` measures its operators in its passes, `simulate` predicts, `run` measures, in turns; the medians are
shown. A worker is one core (--threads 1). Needs an idle machine. Memory is compared exactly, resident memory shown beside it.
"""

import argparse
import array
import dataclasses
import json
import pathlib
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20

MODELS = {
    "mlp": ("batch=8192", 4, "adamw:lr=1e-3"),
    "gpt2": ("batch=128", 4, "adamw:lr=1e-3"),
    "llama": ("batch=128", 4, "adamw:lr=1e-3"),
    "resnet": ("batch=32", 4, "sgd:lr=0.01,momentum=0.9"),
}
LAYOUTS = {
    "1 worker": ("--cluster", "1x1"),
    "2 stages": ("--cluster", "1x2", "--stages", "uniform:2", "--schedule", "1f1b"),
    "2 rows": ("--cluster", "1x2", "--stages", "uniform:1"),
    "2 sharded": ("--cluster", "1x2", "--stages", "uniform:1", "--method", "auto"),
}


@dataclasses.dataclass
class Row:
    model: str
    layout: str
    predicted: float = 0  # seconds, as measured
    measured: float = 0
    spread: float = 0
    arena: tuple = ()     # bytes by rank: predicted, measured
    communicator: tuple = ()
    resident: int = 0
    skipped: str = ""

    def cells(self) -> list[str]:
        if self.skipped:
            return [self.model, self.layout, "skipped: " + self.skipped]
        ratio = self.predicted / self.measured
        same = lambda pair: f"{sum(pair[0]) / MIB:.2f} MiB " + ("exact" if pair[0] == pair[1] else f"but {sum(pair[1]) / MIB:.2f}")
        return [self.model, self.layout, f"{1e3 * self.predicted:.2f} ms", f"{1e3 * self.measured:.2f} ms", f"{100 * self.spread:.0f}%", f"{ratio:.2f}",
                "ok" if abs(ratio - 1) <= 0.15 else "off", same(self.arena), same(self.communicator), f"{self.resident / MIB:.0f} MiB"]


def call(*command) -> str:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=None)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {result.stderr.strip()[-400:]}")
    return result.stdout


def write_data(plan: pathlib.Path, output: pathlib.Path) -> None:
    """A batch for the plan's inputs, without numpy."""
    generator = random.Random(1)
    inputs = {}
    for program in sorted(plan.glob("kinds/*.json")):
        inputs |= {entry["name"]: entry for entry in json.loads(program.read_text())["inputs"]}
    with zipfile.ZipFile(output, "w") as file:
        for entry in inputs.values():
            count = 1
            for size in entry["shape"]:
                count *= size
            if entry["type"] == "float32":
                kind, data = "<f4", array.array("f", (generator.gauss(0, 1) for _ in range(count)))
            else:
                kind, data = "<i8", array.array("q", (generator.randrange(entry["low"], entry["high"]) for _ in range(count)))
            header = "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }" % (kind, "".join(f"{size}," for size in entry["shape"]))
            header += " " * (63 - (10 + len(header)) % 64) + "\n"
            file.writestr(entry["name"] + ".npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data.tobytes())


def measure(pipeshard: pathlib.Path, folder: pathlib.Path, row: Row, steps: int, rounds: int) -> None:
    dimension, microbatches, optimizer = MODELS[row.model]
    plan, profile, report, data = (folder / name for name in ("plan", "profile.json", "report.json", "data.npz"))
    call(pipeshard, "plan", ROOT / "examples" / f"{row.model}.onnx", "--dim", dimension, "--microbatches", microbatches, "--optimizer", optimizer,
         "--profile", "off", *LAYOUTS[row.layout], "-o", plan)
    write_data(plan, data)
    predicted, measured = [], []
    for _ in range(rounds):
        call(pipeshard, "profile", "--model", plan, "-o", profile)
        call(pipeshard, "simulate", plan, "--profile", profile, "--threads", 1, "--json", report)
        simulated = json.loads(report.read_text())
        predicted.append(simulated["makespan"] / 1e9)
        call(pipeshard, "run", plan, "--steps", steps, "--threads", 1, "--data", data, "--json", report)
        ran = json.loads(report.read_text())
        measured += [step["seconds"] for step in ran["steps"][1:]]
    measured.sort()
    row.predicted, row.measured = statistics.median(predicted), statistics.median(measured)
    row.spread = (measured[len(measured) * 3 // 4] - measured[len(measured) // 4]) / row.measured
    by_rank = lambda key: [rank[key] for rank in ran["ranks"]]
    row.arena = (simulated["arena_bytes"], by_rank("arena_bytes"))
    row.communicator = (simulated["communicator_bytes"], by_rank("communicator_bytes"))
    row.resident = max(by_rank("peak_resident_bytes"))


def print_table(rows: list[Row]) -> None:
    lines = [["model", "layout", "predicted", "measured", "quartiles", "ratio", "15%", "arena", "communicator", "resident"]]
    lines += [row.cells() for row in rows]
    widths = [max(len(line[i]) for line in lines if len(line) > i and (i < 2 or len(line) > 3)) for i in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release", metavar="DIR", help="default: build/release")
    parser.add_argument("--no-build", action="store_true", help="take the program in --build as it is")
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX", help="rows (\"gpt2 2 stages\") whose name it is found in")
    parser.add_argument("--steps", type=int, default=12, help="of every run; the first is left out (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of profile, simulate and run (default: %(default)s)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write the rows to this file")
    options = parser.parse_args()
    if not options.no_build:
        subprocess.run(["cmake", "--preset", "release", "-S", ROOT, "-Wno-dev"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cmake", "--build", options.build, "--target", "pipeshard"], check=True, stdout=subprocess.DEVNULL)
    rows = []
    for model in MODELS:
        for layout in LAYOUTS:
            if not options.only.search(f"{model} {layout}"):
                continue
            row = Row(model, layout)
            print(f"measuring {model}, {layout}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                try:
                    measure(options.build.resolve() / "tools" / "pipeshard", pathlib.Path(folder), row, options.steps, options.rounds)
                except RuntimeError as error:
                    row.skipped = str(error)
            rows.append(row)
    print_table(rows)
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
