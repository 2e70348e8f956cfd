"""One training step of a full-size model in PyTorch, and in pipeshard beside it: seconds per step and peak memory.

The peer is PyTorch at its best: eager and torch.compile, fused optimizers, scaled-dot-product attention for GPT-2,
channels-last images for ResNet, denormals flushed, as many threads as pipeshard gets. It takes the same steps: the model
of tools/export/models, AdamW or SGD with momentum in float32, one microbatch unless --microbatches says otherwise. A
mode that ends in +env also gets an environment that PyTorch does not set by itself, but that makes it faster: freed
memory is kept, in huge pages, and on processors of other makers MKL is told by a preloaded library to use its AVX-512
code, as on Intel's.

With --plan, rounds of both sides alternate, so that both see the same machine. Each round is a fresh process; its first
steps warm it up and do not count. Peak memory is VmHWM of the process that computes.

    py=$(tools/export/setup.sh)
    $py tools/export/export.py gpt2 --size full --seq 128 --attention sdpa --output gpt2.onnx
    pipeshard plan gpt2.onnx --dim batch=4 --microbatches 1 --optimizer adamw:lr=1e-4 --cluster 1x1 -o gpt2.plan
    $py benchmarks/pytorch_step.py --model gpt2 --plan gpt2.plan --pipeshard build/release/tools/pipeshard
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WARM_UP = 2
BATCH = {"gpt2": 4, "resnet50": 8}


def peak_bytes() -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


def build(options):
    """The module, and its batch as a dictionary of tensors."""
    import numpy as np
    import torch

    sys.path.insert(0, str(ROOT / "tools" / "export"))
    from models import MODELS
    from models import build as build_model

    name = "gpt2" if options.model == "gpt2" else "resnet"
    config = dict(MODELS[name].SIZES["full"])
    if name == "gpt2":
        config |= {"seq": options.seq, "attention": "sdpa"}
    module = build_model(name, config, 0).train()
    inputs = module.example_inputs(options.batch, np.random.default_rng(0))
    batch = {key: torch.from_numpy(array) for key, array in inputs.items()}
    if name == "resnet":
        module = module.to(memory_format=torch.channels_last)
        batch["images"] = batch["images"].to(memory_format=torch.channels_last)
    return module, batch


def take_steps(options) -> None:
    """The peer process: prints one JSON object."""
    import torch

    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    module, batch = build(options)
    if options.optimizer == "adamw":
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    else:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, fused=True)
    forward = torch.compile(module) if options.peer == "compile" else module
    parts = [dict(zip(batch, tensors)) for tensors in zip(*(tensor.chunk(options.microbatches) for tensor in batch.values()))]

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for part in parts:
            loss = forward(**part) / len(parts)
            loss.backward()
            total += loss.item()
        optimizer.step()
        return total

    seconds, losses = [], []
    for _ in range(WARM_UP + options.steps):
        start = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds[WARM_UP:], "peak_bytes": peak_bytes(), "loss": losses[0]}))


# What libtorch's MKL asks before it chooses its code; elsewhere it answers no, and AVX2 is the best that it takes.
INTEL = "int mkl_serv_intel_cpu_true(void) { return 1; }\nint mkl_serv_intel_cpu(void) { return 1; }\n"
KEPT = 16 << 30  # bytes that malloc does not give back


def tuned_environment(folder: str) -> dict:
    library = pathlib.Path(folder) / "mkl_avx512.so"
    if not library.exists():
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)], input=INTEL, text=True, check=True)
    return {"LD_PRELOAD": str(library),
            "GLIBC_TUNABLES": f"glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold={KEPT}:glibc.malloc.trim_threshold={KEPT}"}


def peer_round(options, mode: str, folder: str) -> dict:
    mode, _, tuned = mode.partition("+")
    command = [sys.executable, __file__, "--peer", mode, "--model", options.model, "--batch", options.batch, "--seq", options.seq,
               "--optimizer", options.optimizer, "--steps", options.steps, "--threads", options.threads,
               "--microbatches", options.microbatches]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)} | (tuned_environment(folder) if tuned else {})
    output = subprocess.run([str(word) for word in command], env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def own_round(options, plan: str) -> dict:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [options.pipeshard, "run", plan, "--steps", WARM_UP + options.steps, "--json", file.name]
        workers = json.loads((pathlib.Path(plan) / "ranks.json").read_text())["ranks"]
        command += ["--threads", max(1, options.threads // workers)]
        command += ["--data", options.data] if options.data else []
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        report = json.load(open(file.name))
    return {"seconds": [step["seconds"] for step in report["steps"]][WARM_UP:],
            "peak_bytes": sum(rank["peak_resident_bytes"] for rank in report["ranks"]), "loss": report["steps"][0]["loss"]}


def compare(options, folder: str) -> None:
    sides = {f"pytorch {mode}": (lambda mode=mode: peer_round(options, mode, folder)) for mode in options.modes.split(",") if mode}
    for plan in options.plan:
        sides[f"pipeshard {pathlib.Path(plan).name}"] = lambda plan=plan: own_round(options, plan)
    rounds = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, run in sides.items():
            rounds[name].append(run())
    table = {name: {"seconds": statistics.median(s for r in found for s in r["seconds"]),
                    "fastest": min(s for r in found for s in r["seconds"]),
                    "peak_bytes": max(r["peak_bytes"] for r in found)} for name, found in rounds.items()}
    peers = [row for name, row in table.items() if name.startswith("pytorch")]
    best = min((row["seconds"] for row in peers), default=None)
    least = min((row["peak_bytes"] for row in peers), default=None)
    print(f"{options.model}, batch {options.batch}, {options.threads} threads, median of {options.rounds * options.steps} steps"
          + ("; ratios to PyTorch's best of each column" if best else ""))
    for name, row in table.items():
        ratios = f"   {row['seconds'] / best:5.2f} x time  {row['peak_bytes'] / least:5.2f} x memory" if best else ""
        print(f"  {name:28} {row['seconds']:8.3f} s/step (fastest {row['fastest']:.3f})  {row['peak_bytes'] / 2**20:7.0f} MiB{ratios}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"sides": table, "rounds": rounds}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=BATCH, required=True)
    parser.add_argument("--plan", nargs="*", default=[], metavar="DIR", help="plan directories to run beside PyTorch")
    parser.add_argument("--pipeshard", default="pipeshard", metavar="PROGRAM")
    parser.add_argument("--modes", default="eager,compile,eager+env,compile+env",
                        help="of PyTorch; empty: plans only (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=None, help="examples (default: 4 for gpt2, 8 for resnet50)")
    parser.add_argument("--seq", type=int, default=128, help="tokens of an example of gpt2 (default: %(default)s)")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw",
                        help="PyTorch's; a plan has its own (default: %(default)s)")
    parser.add_argument("--data", metavar="NPZ", help="what plans are trained on (default: synthetic, made within each step)")
    parser.add_argument("--microbatches", type=int, default=1, help="PyTorch's; a plan has its own (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="shared out to the workers of a plan (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=4, help=f"that count in a round, after {WARM_UP} (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="also write every time")
    parser.add_argument("--peer", choices=("eager", "compile"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.batch = options.batch or BATCH[options.model]
    if options.peer:
        return take_steps(options)
    with tempfile.TemporaryDirectory() as folder:
        compare(options, folder)


if __name__ == "__main__":
    main()
