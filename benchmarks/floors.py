#!/usr/bin/env python3
"""Every speed and memory floor of the project, measured now: one table of ratios to a peer or a limit.

The two sides of a row take turns in one run on this machine; compare only numbers of one run, on an idle machine. Rows
beside PyTorch need the Python environment of tools/export/setup.sh (PIPESHARD_EXPORT_VENV); without it they are
skipped, and the table says so. Models are exported once, into --cache.

    benchmarks/floors.py                            # builds build/release; four to six minutes
    benchmarks/floors.py --only 'send|all-reduce'   # rows whose name matches
    benchmarks/floors.py --modes eager,compile,eager+env,compile+env    # PyTorch's every mode: ten minutes more

A missed floor is a measurement, not an error: the exit code is 0 unless --strict is given.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "pipeshard"
MIB = 1 << 20


class Skipped(Exception):
    """A row cannot be measured here; the text says why."""


@dataclasses.dataclass
class Row:
    """`ratio` meets the floor when it is at most (or, with `least`, at least) `floor`."""

    what: str
    floor: float
    least: bool = False
    ours: str = ""
    peer: str = ""
    ratio: float | None = None
    skipped: str = ""

    def verdict(self) -> str:
        if self.ratio is None:
            return "skipped: " + self.skipped
        return "ok" if (self.ratio >= self.floor if self.least else self.ratio <= self.floor) else "MISSED"

    def bound(self) -> str:
        return f"{'>=' if self.least else '<='} {self.floor:g}"


@dataclasses.dataclass
class Setting:
    build: pathlib.Path
    cache: pathlib.Path
    folder: pathlib.Path  # temporary
    threads: int
    modes: str
    python: pathlib.Path

    @property
    def pipeshard(self) -> pathlib.Path:
        return self.build / "tools" / "pipeshard"

    def benchmark(self, name: str) -> pathlib.Path:
        program = self.build / "benchmarks" / name
        if not program.exists():
            raise Skipped(f"{program} is not built")
        return program


def call(*command, accept=(0,)) -> str:
    """Output of a program; an exit code that is not accepted becomes an error with what it printed last."""
    found = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if found.returncode not in accept:
        last = (found.stderr.strip() or found.stdout.strip()).splitlines()[-1:]
        raise Skipped(f"{pathlib.Path(command[0]).name} ended with code {found.returncode}: {' '.join(last)}")
    return found.stdout


# --- the sections: each fills its rows ---------------------------------------------------------------------------------


def exported(setting: Setting, name: str, *options: str) -> pathlib.Path:
    model = setting.cache / f"{name}.onnx"
    if not setting.python.exists():
        raise Skipped("PyTorch is absent; tools/export/setup.sh makes its environment")
    if not model.exists():
        progress(f"exporting {model}")
        setting.cache.mkdir(parents=True, exist_ok=True)
        partial = setting.cache / "partial"
        partial.mkdir(exist_ok=True)
        call(setting.python, ROOT / "tools/export/export.py", *options, "--output", partial / model.name)
        for file in sorted(partial.iterdir(), reverse=True):  # the weights first
            file.rename(setting.cache / file.name)
    return model


def gpt2(setting: Setting) -> pathlib.Path:
    return exported(setting, "gpt2-124M-128", "gpt2", "--size", "full", "--seq", "128", "--attention", "sdpa")


def planned(setting: Setting, model: pathlib.Path, name: str, *options) -> pathlib.Path:
    plan = setting.folder / name
    call(setting.pipeshard, "plan", model, "-o", plan, *options)
    return plan


def beside_pytorch(setting: Setting, time_row: Row, memory_row: Row, model: str, plan: pathlib.Path, *options) -> None:
    """A step's time beside PyTorch's fastest mode, peak memory beside the mode that needs least."""
    report = setting.folder / f"{model}.json"
    call(setting.python, ROOT / "benchmarks/pytorch_step.py", "--model", model, "--plan", plan, "--pipeshard", setting.pipeshard,
         "--threads", setting.threads, "--modes", setting.modes, "--json", report, *options)
    sides = json.loads(report.read_text())["sides"]
    own = next(side for name, side in sides.items() if name.startswith("pipeshard"))
    peers = {name: side for name, side in sides.items() if not name.startswith("pipeshard")}
    best = min(peers, key=lambda name: peers[name]["seconds"])
    least = min(peers, key=lambda name: peers[name]["peak_bytes"])
    time_row.ours = f"{own['seconds']:.3f} s"
    time_row.peer = f"{best} {peers[best]['seconds']:.3f} s"
    time_row.ratio = own["seconds"] / peers[best]["seconds"]
    memory_row.ours = f"{own['peak_bytes'] / MIB:.0f} MiB"
    memory_row.peer = f"{least} {peers[least]['peak_bytes'] / MIB:.0f} MiB"
    memory_row.ratio = own["peak_bytes"] / peers[least]["peak_bytes"]


def measure_gpt2(setting: Setting, rows: list[Row]) -> None:
    model = gpt2(setting)
    plan = planned(setting, model, "gpt2.plan", "--dim", "batch=4", "--microbatches", 1, "--optimizer", "adamw:lr=1e-4",
                   "--cluster", "1x1")
    beside_pytorch(setting, *rows, "gpt2", plan)


def measure_resnet(setting: Setting, rows: list[Row]) -> None:
    model = exported(setting, "resnet50", "resnet", "--size", "full")
    plan = planned(setting, model, "resnet50.plan", "--dim", "batch=8", "--microbatches", 1, "--optimizer", "sgd:lr=0.01,momentum=0.9",
                   "--cluster", "1x1")
    data = setting.folder / "images.npz"
    call(setting.python, ROOT / "tools/export/make_data.py", model, "--batch", 8, "--output", data)
    beside_pytorch(setting, *rows, "resnet50", plan, "--optimizer", "sgd", "--data", data)


def measure_sends(setting: Setting, rows: list[Row]) -> None:
    """Payload per second: the receiver has the data, beside memcpy within one process."""
    sizes = [MIB, 64 * MIB]
    names = "|".join(str(size) for size in sizes)
    text = call(setting.benchmark("transport_benchmark"),
                f"--benchmark_filter=^(copyInOneProcess|sendArena)/({names})(/2)?(/manual_time)?$", "--benchmark_repetitions=7", "--benchmark_min_time=0.3", "--benchmark_enable_random_interleaving=true",
                "--benchmark_format=json")
    rates: dict[str, list[float]] = {}
    for run in json.loads(text)["benchmarks"]:
        if run["run_type"] == "iteration":
            rates.setdefault("/".join(run["run_name"].split("/")[:2]), []).append(run["bytes_per_second"])
    for row, size in zip(rows, sizes):
        own, peer = (statistics.median(rates[f"{name}/{size}"]) for name in ("sendArena", "copyInOneProcess"))
        row.ours, row.peer, row.ratio = f"{own / 1e9:.1f} GB/s", f"memcpy {peer / 1e9:.1f} GB/s", own / peer


def measure_all_reduce(setting: Setting, rows: list[Row]) -> None:
    text = call(setting.benchmark("allreduce_ratio"), 64)
    found = {match[1].strip(): float(match[2]) for match in re.finditer(r"^(.+?)\s+([\d.]+) ms ", text, re.MULTILINE)}
    own, peer = found["shared memory"], found["Gloo, its own ring"]
    rows[0].ours, rows[0].peer, rows[0].ratio = f"{own:.1f} ms", f"Gloo {peer:.1f} ms", peer / own


def measure_control(setting: Setting, rows: list[Row]) -> None:
    text = call(setting.benchmark("control_benchmark"), accept=(0, 1))  # 1: a limit is broken, which the table will say
    match = re.search(r"^with keys\s+([\d.]+)", text, re.MULTILINE)
    if match is None:
        raise Skipped("control_benchmark printed no row 'with keys'")
    limit = 200.0
    rows[0].ours, rows[0].peer, rows[0].ratio = f"{float(match[1]):.0f} us", f"limit {limit:.0f} us", float(match[1]) / limit


def own_report(setting: Setting, plan: pathlib.Path, steps: int, threads: int) -> dict:
    report = setting.folder / "run.json"
    call(setting.pipeshard, "run", plan, "--steps", steps, "--threads", threads, "--json", report)
    return json.loads(report.read_text())


def measure_start(setting: Setting, rows: list[Row]) -> None:
    """From the start of the processes until all have registered and loaded."""
    plan = planned(setting, ROOT / "examples" / "mlp.onnx", "start.plan", "--cluster", "1x4", "--stages", "uniform:4")
    own = statistics.median(own_report(setting, plan, 1, 1)["load_seconds"] for _ in range(7))
    limit = 0.5
    rows[0].ours, rows[0].peer, rows[0].ratio = f"{own:.3f} s", f"limit {limit} s", own / limit


def measure_pipeline(setting: Setting, rows: list[Row]) -> None:
    """GPT-2 124M, 8 microbatches of 4 x 128 tokens. The single worker gets the same batch in 8 parts and in 2."""
    model = gpt2(setting)
    common = ("--dim", "batch=32", "--optimizer", "adamw:lr=1e-4")
    singles = {f"one worker, {parts} parts": planned(setting, model, f"single{parts}.plan", *common, "--microbatches", parts,
                                                     "--cluster", "1x1") for parts in (8, 2)}
    pair = planned(setting, model, "pair.plan", *common, "--microbatches", 8, "--cluster", "1x2", "--stages", "uniform:2",
                   "--schedule", "1f1b")
    sides = {name: (plan, setting.threads) for name, plan in singles.items()} | {"pair": (pair, max(1, setting.threads // 2))}
    seconds: dict[str, list[float]] = {}
    for _ in range(2):
        for name, (plan, threads) in sides.items():
            seconds.setdefault(name, []).extend(step["seconds"] for step in own_report(setting, plan, 2, threads)["steps"][1:])
    best = min(singles, key=lambda name: min(seconds[name]))
    own, peer = min(seconds["pair"]), min(seconds[best])
    rows[0].ours, rows[0].peer, rows[0].ratio = f"{own:.2f} s", f"{best} {peer:.2f} s", own / peer


SECTIONS = (
    ("GPT-2 124M, 4 x 128 tokens", measure_gpt2,
     [Row("GPT-2 124M, 4 x 128 tokens: step", 1.5), Row("GPT-2 124M, 4 x 128 tokens: peak memory", 1.0)]),
    ("ResNet-50, batch 8", measure_resnet, [Row("ResNet-50, batch 8: step", 1.5), Row("ResNet-50, batch 8: peak memory", 1.0)]),
    ("sends", measure_sends, [Row("send of 1 MiB between two workers", 0.8, True), Row("send of 64 MiB between two workers", 0.8, True)]),
    ("all-reduce", measure_all_reduce, [Row("all-reduce of 64 MiB over two workers", 5.0, True)]),
    ("control", measure_control, [Row("control round trip, with keys", 1.0)]),
    ("start", measure_start, [Row("start of 4 workers until all have loaded", 1.0)]),
    ("pipeline", measure_pipeline, [Row("1F1B, two workers, 8 microbatches (GPT-2 124M)", 1.15)]),
)


# --- the command -------------------------------------------------------------------------------------------------------


def progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def build(folder: pathlib.Path) -> None:
    progress(f"building {folder}")
    if folder != ROOT / "build" / "release":
        sys.exit("floors.py: only build/release is built; give --no-build for another --build")
    try:
        call("cmake", "--preset", "release", "-S", ROOT, "-Wno-dev")
        call("cmake", "--build", folder, "--target", "pipeshard", "transport_benchmark", "control_benchmark", "allreduce_ratio")
    except Skipped as reason:
        sys.exit(f"floors.py: {reason}")


def environment_python() -> pathlib.Path:
    return pathlib.Path(os.environ.get("PIPESHARD_EXPORT_VENV", CACHE / "export-venv")) / "bin" / "python"


def print_table(rows: list[Row]) -> None:
    cells = [("what", "ours", "peer or limit", "ratio", "floor", "")]
    cells += [(row.what, row.ours, row.peer, "" if row.ratio is None else f"{row.ratio:.2f}", row.bound(), row.verdict()) for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release", metavar="DIR", help="default: build/release")
    parser.add_argument("--no-build", action="store_true", help="take the programs in --build as they are")
    parser.add_argument("--cache", type=pathlib.Path, default=CACHE / "floors", metavar="DIR",
                        help="of exported models (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of each side (default: %(default)s)")
    parser.add_argument("--modes", default="eager,eager+env", help="of PyTorch, as pytorch_step.py names them (default: %(default)s)")
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX", help="rows whose name it is found in")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write the rows to this file")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a floor is missed or a row skipped")
    options = parser.parse_args()
    if not options.no_build:
        build(options.build.resolve())
    shown = []
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(options.build.resolve(), options.cache.resolve(), pathlib.Path(folder), options.threads, options.modes,
                          environment_python())
        for name, measure, rows in SECTIONS:
            if not any(options.only.search(row.what) for row in rows):
                continue
            progress(f"measuring {name}")
            try:
                measure(setting, rows)
            except Skipped as reason:
                for row in rows:
                    row.skipped = str(reason)
            shown += rows
    print_table(shown)
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(row) | {"verdict": row.verdict()} for row in shown], indent=1) + "\n")
    return int(options.strict and any(row.verdict() != "ok" for row in shown))


if __name__ == "__main__":
    sys.exit(main())
