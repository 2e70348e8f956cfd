#!/usr/bin/env python3
"""How long `pipeshard plan` takes: against layers, devices and operators, from graphs without weights.

Models are GPTs with the widths of Alpa's 39B (48 layers) and of GPT-3 175B, exported once into --cache by tools/export, which needs its
Python environment (PIPESHARD_EXPORT_VENV); rows whose model is in neither are skipped, and the table says so. Plans are made without
programs (plan --no-programs), so that the time is that of reading, differentiating, clustering, searching and writing the plan. The number
of microbatches of a batch of 1,024 is searched for, too, where stages are. GPT-2 (12 layers) on up to 1,024 ranks is planned with
its programs and its report: the time includes them, files and MB are those of the plan directory. With a method, devices that differ in
their place alone are of one kind, too. GPT-39B, GPT-175B and Llama-70B with programs are planned by a grid. `simulate` and `report` of such
plans are columns, and what the last rank's worker takes to load its program, beside weights and activations (rank_loading).

Below the table stand the goals of the project, behind what was measured: OK or MISSED. Seconds are of the clock, meant for two cores; other work on
the machine makes them longer, so processor seconds of all threads stand beside them, in brackets, and `others` is how many processes wanted a core (the
load of the last minute) when a row began: above 0, clocks are too long.

    benchmarks/plan_time.py                         # builds nothing: build/release, or --pipeshard FILE
    benchmarks/plan_time.py --only 175B --stages per-device
    benchmarks/plan_time.py --programs              # the ranks' programs, too

Growth is the exponent of processor time over layers, ranks or kinds of rank, between two rows: 0 is constant, 1 linear, 2 quadratic.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "pipeshard"
GPT39 = ("gpt2", "--size", "39B")
GPT175 = ("gpt2", "--size", "39B", "--embd", "12288", "--heads", "96")
LLAMA70 = ("llama", "--size", "full", "--hidden", "8192", "--inner", "28672", "--heads", "64", "--kv-heads", "8", "--seq", "8192",
           "--vocab", "128256")


LARGE = {"simulate": 5.0, "report": 5.0, "load": 0.5, "load_mb": 50.0}  # of 1,024 ranks
SMALL = {**LARGE, "seconds": 10.0, "peak_mb": 500.0, "files": 500.0, "megabytes": 50.0}  # of GPT-2 on them
UNITS = {"seconds": "s of plan", "peak_mb": "MB of memory", "files": "files", "megabytes": "MB written", "simulate": "s of simulate",
         "report": "s of report", "load": "s of loading", "load_mb": "MB of loading"}
PROCESSOR = {"seconds": "processor", "simulate": "simulate_processor", "report": "report_processor"}
MOST_OF_RANKS = 0.25  # near constant
MOST_OF_KINDS = 1.0


class Skipped(Exception):
    """A row cannot be measured here; the text says why."""


@dataclasses.dataclass
class Row:
    name: str
    export: tuple  # arguments of tools/export/export.py
    layers: int
    nodes: int  # of 8 devices
    batch: int = 1024
    microbatches: int = 1024
    goals: dict[str, float] = dataclasses.field(default_factory=dict)  # by field below: the most that the project wants
    stages: str = ""  # as plan --stages; "": --stages
    programs: bool = False  # whatever --programs says
    kind: str = "a100"  # of devices
    options: tuple = ()  # more options of plan
    kinds: int = 0  # of ranks, with programs
    files: int = 0  # of the plan directory, with programs
    megabytes: float = 0
    simulate: float | None = None  # seconds of `simulate`
    simulate_processor: float | None = None
    report: float | None = None  # seconds of `report`
    report_processor: float | None = None
    load: float | None = None  # seconds in which a rank is loaded
    load_mb: float = 0  # of the process that does so
    seconds: float | None = None
    processor: float | None = None  # seconds of all threads: what other work on the machine leaves alone
    peak_mb: float = 0
    others: float = 0
    operators: int = 0
    skipped: str = ""

    @property
    def cluster(self) -> str:
        return f"dgx-{self.kind}:{self.nodes}"


def gpt2(nodes: int, stages: str, *options, goals: dict[str, float] | None = None) -> Row:
    return Row(f"GPT-2 with programs, {options[1] if options else stages}", ("gpt2", "--size", "full"), 12, nodes, microbatches=8,
               stages=stages, programs=True, options=options, goals=goals or {})


ROWS = [
    *[Row(f"GPT, hidden 8192, {layers} layers", (*GPT39, "--layers", str(layers)), layers, 8) for layers in (12, 24)],
    Row("GPT-39B", GPT39, 48, 8, goals={"seconds": 10}),
    Row("GPT, hidden 8192, 96 layers", (*GPT39, "--layers", "96"), 96, 8),
    *[Row("GPT-39B", GPT39, 48, nodes) for nodes in (4, 16, 32)],
    Row("GPT-175B", (*GPT175, "--layers", "96"), 96, 128, goals={"seconds": 60}),
    *[gpt2(nodes, "uniform:8", goals=SMALL if nodes == 128 else None) for nodes in (8, 16, 32, 64, 128)],
    *[gpt2(128, stages, goals=SMALL) for stages in ("uniform:1", "uniform:2", "uniform:4", "uniform:16")],
    *[gpt2(128, "uniform:8", "--method", method, goals=SMALL) for method in ("data-parallel", "zero2", "zero3")],
    gpt2(128, "grid", "--method", "megatron:32,4,8", goals=SMALL),
    Row("GPT-39B with programs", GPT39, 48, 8, microbatches=128, stages="grid", programs=True, goals={"seconds": 40},
        options=("--method", "megatron:1,8,8", "--recompute", "always")),
    Row("GPT-175B with programs", (*GPT175, "--layers", "96"), 96, 128, microbatches=64, stages="grid", programs=True,
        goals={"seconds": 120, **LARGE}, options=("--method", "megatron:8,8,16", "--recompute", "always")),
    Row("Llama-70B with programs", (*LLAMA70, "--layers", "80"), 80, 4, microbatches=1024, stages="grid", programs=True,
        goals={"seconds": 60}, kind="h100", options=("--method", "megatron:1,8,4", "--recompute", "layers")),
]


def exported(options, row: Row) -> pathlib.Path:
    name = "-".join(["plan", *[word.strip("-") for word in row.export]]) + ".onnx"
    model = options.cache / name
    if model.exists():
        return model
    python = pathlib.Path(os.environ.get("PIPESHARD_EXPORT_VENV", "")) / "bin" / "python"
    if not os.environ.get("PIPESHARD_EXPORT_VENV") or not python.exists():
        raise Skipped(f"{model} is absent, and so is PyTorch's environment to export it (PIPESHARD_EXPORT_VENV)")
    print(f"exporting {model}", file=sys.stderr, flush=True)
    options.cache.mkdir(parents=True, exist_ok=True)
    partial = model.with_suffix(".partial.onnx")
    command = [python, ROOT / "tools/export/export.py", *row.export, "--no-weights", "--output", partial]
    found = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if found.returncode != 0:
        raise Skipped("the export failed: " + (found.stderr.strip().splitlines() or ["no message"])[-1])
    partial.rename(model)
    return model


def plan_once(options, row: Row, model: pathlib.Path, folder: pathlib.Path) -> None:
    plan = folder / "timed.plan"
    shutil.rmtree(plan, ignore_errors=True)
    command = [options.pipeshard, "plan", model, "--allow-missing-weights", "--dim", f"batch={row.batch}", "--optimizer", "adam",
               "--cluster", row.cluster, "-o", plan, *row.options, *options.plan_options]
    if row.stages != "grid":  # that the method says
        command += ["--stages", row.stages or options.stages]
    if (row.stages or options.stages) != "auto":
        command += ["--microbatches", row.microbatches]
    if not options.programs and not row.programs:
        command.append("--no-programs")
    seconds, processor, peak_mb = timed(*command)
    row.seconds = least(row.seconds, seconds)
    row.processor = least(row.processor, processor)
    row.peak_mb = max(row.peak_mb, peak_mb)
    decided = json.loads((plan / "plan.json").read_text())
    row.operators = decided["layers"][-1]["last"] + 1
    if row.programs:
        written = [path.stat().st_size for path in plan.rglob("*") if path.is_file()]
        row.files, row.megabytes = len(written), sum(written) / 1e6
        row.kinds = len(list((plan / "kinds").iterdir()))
        for field in ("simulate", "report"):
            seconds, processor, _ = timed(options.pipeshard, field, plan)
            setattr(row, field, least(getattr(row, field), seconds))
            setattr(row, field + "_processor", least(getattr(row, field + "_processor"), processor))
        load_once(options, row, plan)
    shutil.rmtree(plan)


def least(before: float | None, now: float) -> float:
    return now if before is None else min(before, now)


def timed(*command) -> tuple[float, float, float]:
    """Seconds of the clock, of the processor, and the peak of memory in MB."""
    with tempfile.TemporaryFile("w+") as errors:
        begin = time.monotonic()
        process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            raise Skipped(f"{command[1]} failed: " + (errors.read().strip().splitlines() or [f"code {process.returncode}"])[-1])
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def load_once(options, row: Row, plan: pathlib.Path) -> None:
    """The last rank; nothing where rank_loading is not built."""
    program = options.pipeshard.parent.parent / "benchmarks/rank_loading"
    if not program.exists():
        return
    ranks = json.loads((plan / "ranks.json").read_text())["ranks"]
    loaded = json.loads(subprocess.run([str(program), str(plan), str(ranks - 1)], check=True, capture_output=True, text=True).stdout)
    row.load = least(row.load, loaded["seconds"])
    row.load_mb = max(row.load_mb, loaded["peak_bytes"] / 1e6)


def measure(options, row: Row) -> None:
    try:
        model = exported(options, row)
        row.others = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(options.runs):
                plan_once(options, row, model, pathlib.Path(folder))
    except Skipped as reason:
        row.skipped = str(reason)


def table(rows: list[Row]) -> str:
    lines = [f"{'model':38} {'layers':>6} {'operators':>9} {'cluster':>12} {'seconds':>8} {'processor':>9} {'MB':>6} {'others':>6} {'kinds':>5} "
             f"{'files':>5} {'MB':>6} {'simulate':>14} {'report':>14} {'load':>5} {'MB':>4}"]
    for row in rows:
        head = f"{row.name:38} {row.layers:6} {row.operators or '':>9} {row.cluster:>12}"
        if row.seconds is None:
            lines.append(f"{head} skipped: {row.skipped}")
            continue
        line = f"{head} {row.seconds:8.2f} {row.processor:9.2f} {row.peak_mb:6.0f} {row.others:6.1f}"
        if row.report is not None:
            simulated = f"{row.simulate:.2f} ({row.simulate_processor:.2f})"
            reported = f"{row.report:.2f} ({row.report_processor:.2f})"
            line += f" {row.kinds:5} {row.files:5} {row.megabytes:6.1f} {simulated:>14} {reported:>14}"
        if row.load is not None:
            line += f" {row.load:5.2f} {row.load_mb:4.0f}"
        lines.append(line + (f"  {row.skipped}" if row.skipped else ""))
    return "\n".join(lines)


def verdict(is_met: bool) -> str:
    return "OK" if is_met else "MISSED"


def goals(row: Row) -> str:
    """Each goal beside what was measured; behind seconds of the clock, those of the processor."""
    texts = []
    for field in (field for field in UNITS if field in row.goals):
        measured, most = getattr(row, field), row.goals[field]
        if measured is None or row.seconds is None or (field == "load_mb" and row.load is None):
            texts.append(f"<= {most:g} {UNITS[field]} not measured")
            continue
        processor = f" ({getattr(row, PROCESSOR[field]):.3g})" if field in PROCESSOR else ""
        texts.append(f"{measured:.3g}{processor} <= {most:g} {UNITS[field]} {verdict(measured <= most)}")
    return f"{row.name} on {row.cluster}: " + ", ".join(texts)


def exponent(small: Row, large: Row, field: str) -> float:
    return math.log(large.processor / small.processor) / math.log(getattr(large, field) / getattr(small, field))


def growth(rows: list[Row]) -> str:
    """Between neighbouring numbers of layers on one cluster; with programs, of ranks on growing clusters, and of kinds on one."""
    done = [row for row in rows if row.seconds is not None]
    lines = []
    of_cluster = sorted((row for row in done if row.nodes == 8 and not row.programs), key=lambda row: row.layers)
    for small, large in zip(of_cluster, of_cluster[1:]):
        lines.append(f"growth from {small.layers} to {large.layers} layers: processor time ~ layers^{exponent(small, large, 'layers'):.2f}")
    of_gpt2 = [row for row in done if row.name.startswith("GPT-2 with programs, uniform")]
    of_ranks = sorted((row for row in of_gpt2 if row.stages == "uniform:8" and not row.options), key=lambda row: row.nodes)
    for small, large in zip(of_ranks, of_ranks[1:]):
        found = exponent(small, large, "nodes")
        lines.append(f"growth from {8 * small.nodes} to {8 * large.nodes} ranks, {small.kinds} to {large.kinds} kinds, {small.megabytes:.1f} to "
                     f"{large.megabytes:.1f} MB: processor time ~ ranks^{found:.2f} <= {MOST_OF_RANKS}: {verdict(found <= MOST_OF_RANKS)}")
    of_kinds = sorted((row for row in of_gpt2 if row.nodes == 128 and not row.options), key=lambda row: row.kinds)
    for small, large in zip(of_kinds, of_kinds[1:]):
        if small.kinds == large.kinds:
            continue
        found = exponent(small, large, "kinds")
        lines.append(f"growth from {small.kinds} to {large.kinds} kinds of 1024 ranks: processor time ~ kinds^{found:.2f} <= {MOST_OF_KINDS:g}: "
                     f"{verdict(found <= MOST_OF_KINDS)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose model or cluster matches")
    parser.add_argument("--pipeshard", type=pathlib.Path, default=ROOT / "build/release/tools/pipeshard", help="default: %(default)s")
    parser.add_argument("--cache", type=pathlib.Path, default=CACHE, help="where exported models are (default: %(default)s)")
    parser.add_argument("--stages", default="auto", help="as plan --stages (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=1, help="of each row; the fastest counts (default: %(default)s)")
    parser.add_argument("--programs", action="store_true", help="make the ranks' programs, too")
    parser.add_argument("--json", type=pathlib.Path, help="also write the rows to this file")
    parser.add_argument("plan_options", nargs="*", help="further options of plan, behind --")
    options = parser.parse_args()
    if not options.pipeshard.exists():
        parser.error(f"{options.pipeshard} is not built: cmake --build --preset release --target pipeshard")
    rows = [row for row in ROWS if re.search(options.only, f"{row.name} {row.cluster}")]
    for row in rows:
        print(f"planning {row.name} on {row.cluster}", file=sys.stderr, flush=True)
        measure(options, row)
    print("\n".join([table(rows), *[goals(row) for row in rows if row.goals], growth(rows)]))
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
