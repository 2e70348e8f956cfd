#!/usr/bin/env python3
"""A training step of unmodified modules in pipeshard, beside PyTorch: seconds of a step and peak memory.

Modules are built from their libraries with random weights, exported by torch.onnx.export with its defaults but
optimize=False, planned for one worker, one microbatch, AdamW and training mode (batch normalizations by the batch), and
trained on a batch of their own. PyTorch takes the same steps with the same threads: eager and, if asked for, compiled,
with its fused AdamW. Each side is a process of its own; rounds of all sides alternate, so that they see the same machine;
the first steps of a process do not count. Peak memory is VmHWM of the process that computes. The last column is what
`run --operators` found to take longest.

--forward: the loss alone (`--schedule forward-only`) of modules in evaluation mode, exported with all defaults; a peer more is
onnxruntime, on the same file.

    py=$(tools/export/setup.sh)
    $py benchmarks/real_steps.py --pipeshard build/release/tools/pipeshard --only 'ResNet|BERT'
    $py benchmarks/real_steps.py --pipeshard build/release/tools/pipeshard --forward --modes onnxruntime
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

WARM_UP = 2
BERT_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def vision(name, batch=8, size=224):
    """Of torchvision, as a classifier of 1,000 classes."""
    def build():
        import torch
        import torchvision

        class Classifier(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = getattr(torchvision.models, name)(num_classes=1000)

            def forward(self, x, labels):
                return torch.nn.functional.cross_entropy(self.net(x), labels)

        return Classifier(), (torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,)))
    return build


def language(kind, config, rows, tokens, **options):
    """Of transformers, with its own loss."""
    def build():
        import torch
        import transformers

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = getattr(transformers, kind)(getattr(transformers, config)(**options))

            def forward(self, input_ids, labels):
                return self.net(input_ids=input_ids, labels=labels).loss

        ids = torch.randint(5, 30000, (rows, tokens))
        return Model(), (ids, ids.clone())
    return build


def recurrent(kind):
    """Two layers over 64 words of 16 rows, as a language model of 10,000 words."""
    def build():
        import torch

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.words = torch.nn.Embedding(10000, 256)
                self.layers = getattr(torch.nn, kind)(256, 512, 2, batch_first=True)
                self.head = torch.nn.Linear(512, 10000)

            def forward(self, x, labels):
                scores = self.head(self.layers(self.words(x))[0])
                return torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())

        return Model(), tuple(torch.randint(0, 10000, (16, 64)) for _ in range(2))
    return build


LLAMA = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 4,
         "vocab_size": 32000}
MODULES = {
    "GPT-2 124M, 4 x 128": language("GPT2LMHeadModel", "GPT2Config", 4, 128, **NO_DROPOUT),
    "GPT-2 124M, 1 x 1024": language("GPT2LMHeadModel", "GPT2Config", 1, 1024, **NO_DROPOUT),
    "Llama 125M, 4 x 128": language("LlamaForCausalLM", "LlamaConfig", 4, 128, **LLAMA),
    "BERT-base, 4 x 128": language("BertForMaskedLM", "BertConfig", 4, 128, **BERT_NO_DROPOUT),
    "T5-small, 4 x 128": language("T5ForConditionalGeneration", "T5Config", 4, 128, dropout_rate=0.0, decoder_start_token_id=0),
    "ViT-B/16": vision("vit_b_16"),
    "Swin-T": vision("swin_t"),
    "ConvNeXt-T": vision("convnext_tiny"),
    "ResNet-50": vision("resnet50"),
    "ResNet-18": vision("resnet18"),
    "MobileNetV3-L": vision("mobilenet_v3_large"),
    "EfficientNet-B0": vision("efficientnet_b0"),
    "DenseNet-121": vision("densenet121"),
    "SqueezeNet 1.1": vision("squeezenet1_1"),
    "LSTM": recurrent("LSTM"),
    "GRU": recurrent("GRU"),
}


def build(options):
    import torch

    torch.manual_seed(0)
    module, batch = MODULES[options.only]()
    return module.train(not options.forward), batch


def torch_step(options):
    import torch

    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    module, batch = build(options)
    forward = torch.compile(module) if options.peer == "compile" else module
    if options.forward:
        return torch.no_grad()(lambda: forward(*batch).item())
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = forward(*batch)
        loss.backward()
        loss.item()
        optimizer.step()

    return step


def onnxruntime_step(options):
    import numpy as np
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    session = onnxruntime.InferenceSession(options.model, settings, providers=["CPUExecutionProvider"])
    batch = dict(np.load(options.model.with_suffix(".npz")))
    return lambda: session.run(None, batch)


def take_steps(options) -> None:
    """The peer process: prints one JSON object."""
    step = onnxruntime_step(options) if options.peer == "onnxruntime" else torch_step(options)
    seconds = []
    for _ in range(WARM_UP + options.steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    status = pathlib.Path("/proc/self/status").read_text()
    peak = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
    print(json.dumps({"seconds": seconds[WARM_UP:], "peak_bytes": peak}))


def export(options, path) -> None:
    """Another process, so that peers and workers have the memory: model, batch and plan."""
    import numpy as np
    import onnx
    import torch

    warnings.filterwarnings("ignore")
    module, batch = build(options)
    with torch.no_grad():  # else some versions cannot export T5
        torch.onnx.export(module, batch, str(path), optimize=options.forward, verbose=False)
    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    names = [value.name for value in graph.input if value.name not in weights]
    np.savez(path.with_suffix(".npz"), **{name: tensor.numpy() for name, tensor in zip(names, batch)})
    training = ["--optimizer", "adamw:lr=1e-4", "--mode", "training"]
    command = [options.pipeshard, "plan", path, "--microbatches", 1, "--cluster", "1x1", "-o", path.with_suffix(".plan"),
               *(["--schedule", "forward-only"] if options.forward else training)]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def of_itself(options, name, path, *arguments) -> str:
    command = [sys.executable, __file__, "--only", name, "--pipeshard", options.pipeshard, "--threads", options.threads, "--steps", options.steps,
               *(["--forward"] if options.forward else []), "--model", path]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    return subprocess.run([str(word) for word in [*command, *arguments]], env=environment, check=True, stdout=subprocess.PIPE,
                          stderr=None if options.verbose else subprocess.DEVNULL, text=True).stdout


def own_round(options, path) -> dict:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [options.pipeshard, "run", path.with_suffix(".plan"), "--steps", WARM_UP + options.steps, "--json", file.name,
                   "--data", path.with_suffix(".npz"), "--threads", options.threads, "--operators"]
        done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        report = json.load(open(file.name, encoding="utf-8"))
    rows = re.findall(r"^(\w[\w ]*?)  +\d+ .*?([\d.]+) %", done.stdout, re.MULTILINE)
    return {"seconds": [step["seconds"] for step in report["steps"]][WARM_UP:],
            "peak_bytes": sum(rank["peak_resident_bytes"] for rank in report["ranks"]),
            "longest": ", ".join(f"{operator} {share} %" for operator, share in rows[:3])}


def compare(options, name, folder) -> dict:
    path = pathlib.Path(folder) / (re.sub(r"\W+", "_", name) + ".onnx")
    of_itself(options, name, path, "--export")
    rounds = {side: [] for side in [*options.modes.split(","), "pipeshard"]}
    for _ in range(options.rounds):
        for side, found in rounds.items():
            found.append(own_round(options, path) if side == "pipeshard" else json.loads(of_itself(options, name, path, "--peer", side).splitlines()[-1]))
    table = {side: {"seconds": statistics.median(s for r in found for s in r["seconds"]), "peak_bytes": max(r["peak_bytes"] for r in found)}
             for side, found in rounds.items()}
    ours, peers = table["pipeshard"], {side: row for side, row in table.items() if side != "pipeshard"}
    best = min(peers, key=lambda side: peers[side]["seconds"])
    least = min(row["peak_bytes"] for row in peers.values())
    print(f"| {name} | {ours['seconds']:.3f} s | {best} {peers[best]['seconds']:.3f} s | {ours['seconds'] / peers[best]['seconds']:.2f} | "
          f"{ours['peak_bytes'] / 2**20:.0f} MiB | {ours['peak_bytes'] / least:.2f} | {rounds['pipeshard'][-1]['longest']} |", flush=True)
    return {"name": name, "sides": table, "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeshard", default="pipeshard", metavar="PROGRAM")
    parser.add_argument("--only", default="", metavar="REGEX", help="some modules: " + "; ".join(MODULES))
    parser.add_argument("--modes", default="eager", help="of PyTorch: eager, compile, or both with a comma; onnxruntime (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=4, help=f"that count in a round, after {WARM_UP} (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="also write every time")
    parser.add_argument("--verbose", action="store_true", help="show what the peers say")
    parser.add_argument("--forward", action="store_true", help="the loss alone, without gradients")
    parser.add_argument("--peer", choices=("eager", "compile", "onnxruntime"), help=argparse.SUPPRESS)
    parser.add_argument("--export", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        return take_steps(options)
    if options.export:
        return export(options, options.model)
    if "onnxruntime" in options.modes and not options.forward:
        parser.error("onnxruntime takes no training steps: --forward")
    print("| module | step | peer | ratio | peak | of the peer's | longest |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for name in filter(re.compile(options.only).search, MODULES):
            try:
                rows.append(compare(options, name, folder))
            except subprocess.CalledProcessError as error:
                print(f"| {name} | failed: exit code {error.returncode} of {' '.join(error.cmd[:4])} (--verbose shows why) | | | | | |", flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
