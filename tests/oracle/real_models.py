#!/usr/bin/env python3
"""Unmodified modules, exported by default calls, trained by pipeshard, compared with PyTorch.

    real_models.py PIPESHARD [--only REGEX] [--work DIR] [--table FILE]

Each architecture (real_modules.py) is built from its library as people build it (a small configuration, random
weights), exported by torch.onnx.export without options, or by its dynamo=False, the TorchScript exporter, and
validated with 4 stages and 4 microbatches. Where pipeshard refuses the file because the exporter's optimizer has
lost parameters, it is exported again by the line that the message prints. Then it says

    PASS     every tensor equals one device; pipeshard trains as many elements as PyTorch does; the gradients
             of all parameters equal PyTorch's in float64 (relative to the largest of each tensor, at least
             a millionth of the largest of all)
    refused  exit code 65 and the reason
    FAIL     anything else

Needs torch, torchvision, timm, transformers, onnx, numpy, safetensors. Ends with 1 if anything says FAIL.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import warnings

import numpy as np
import onnx
import safetensors.numpy
import torch

from real_modules import MODELS, ROWS, TORCH_SCRIPT

warnings.filterwarnings("ignore")

LOST = "the exporter's optimizer has changed parameters"


def export(module, inputs, path, **options):
    axes = [{getattr(module, "rows_axis", 0): "batch"} for _ in inputs]
    if options.get("dynamo", True):
        shapes = {"dynamic_shapes": tuple(axes)}
    else:
        names = [f"input{i}" for i in range(len(inputs))]
        shapes = {"input_names": names, "dynamic_axes": dict(zip(names, axes))}
    torch.onnx.export(module, inputs, path, verbose=False, **shapes, **options)


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    return done.returncode, done.stdout, done.stderr


def gradient_error(pipeshard, path, folder, module, inputs, freeze):
    """The largest difference of a parameter's gradient from PyTorch's, relative to the tensor's largest."""
    graph = onnx.load(path).graph
    names = [value.name for value in graph.input]
    data, plan, dump = (os.path.join(folder, name) for name in ("data.npz", "gradients.plan", "dump"))
    np.savez(data, **{name: value.numpy() for name, value in zip(names, inputs)})
    for old in (plan, dump):
        shutil.rmtree(old, ignore_errors=True)
    for command in (["plan", path, "--dim", f"batch={ROWS}", "--cluster", "1x2", "--stages", "uniform:2",
                     "--microbatches", "2", "--precision", "float64", "--optimizer", "sgd:lr=1", "-o", plan, *freeze],
                    ["run", plan, "--data", data, "--steps", "1", "--dump", dump]):
        code, _, errors = run([pipeshard, *command])
        if code != 0:
            return None, errors.strip().splitlines()[-1]
    updated = {}
    for file in glob.glob(os.path.join(dump, "*.safetensors")):
        for name, tensor in safetensors.numpy.load_file(file).items():
            if name.startswith("parameter/"):
                updated[name.split("/", 1)[1]] = tensor
    stored = {}  # TorchScript: a weight under a name of the exporter's, found by its numbers
    for tensor in graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if tensor.name in updated and array.dtype == np.float32:
            stored[array.tobytes()] = stored[array.T.tobytes()] = tensor.name
    bytes_of = {name: value.detach().numpy().tobytes() for name, value in module.named_parameters()}
    exact = module.double()
    exact(*(value.double() if value.is_floating_point() else value for value in inputs)).backward()
    # Gradients that are zero but for rounding (a key's bias under a softmax) are judged by the largest of all.
    least = 1e-6 * max(p.grad.abs().max().item() for p in exact.parameters() if p.grad is not None)
    worst, where = 0.0, ""
    names_of = {}
    for name, parameter in exact.named_parameters(remove_duplicate=False):
        names_of.setdefault(parameter, []).append(name)
    for parameter, names in names_of.items():
        if parameter.grad is None:
            continue
        name = next((one for one in names if one in updated), None)  # one of those of a tied parameter
        name = name or stored.get(bytes_of[names[0]], names[0])
        gradient, before = parameter.grad.numpy(), parameter.detach().numpy()
        if name not in updated:
            return None, f"no {name}"
        found = [before - after for after in (updated[name], updated[name].T) if after.shape == before.shape]
        error = min(np.abs(one - gradient).max() for one in found) / max(least, np.abs(gradient).max())
        if error > worst:
            worst, where = error, name
    return worst, where


def freeze_options(path, names):
    """Files do not say which parameters the module does not train."""
    there = {tensor.name for tensor in onnx.load(path, load_external_data=False).graph.initializer}
    options = []
    for name in names:
        if name in there:
            options += ["--freeze", f"^{re.escape(name)}$"]
    return options


def trial(pipeshard, name, work):
    build, *makers = {**MODELS, **TORCH_SCRIPT}[name]
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    module = build().eval()
    inputs = tuple(make(generator) for make in makers)
    folder = os.path.join(work, re.sub(r"\W+", "_", name))
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "model.onnx")
    module(*inputs).backward()
    numbers = sum(p.numel() for p in module.parameters() if p.grad is not None)
    module.zero_grad()
    frozen = [name for name, value in module.named_parameters() if not value.requires_grad]
    torch_script = {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
    ways = [({}, ""), ({"optimize": False}, "exported again with optimize=False; ")]
    if name in TORCH_SCRIPT:
        ways = [({"dynamo": False}, ""),
                ({"dynamo": False, **torch_script}, "exported again with training=PRESERVE and no constant folding; ")]
    for options, note in ways:
        try:
            export(module, inputs, path, **options)
        except Exception as error:  # the exporter's own
            return "refused", numbers, f"PyTorch does not export it: {type(error.__cause__ or error).__name__}"
        freeze = freeze_options(path, frozen)
        code, output, errors = run([pipeshard, "validate", path, "--dim", f"batch={ROWS}", "--cluster", "1x4",
                                    "--stages", "uniform:4", "--microbatches", "4", "--steps", "1", *freeze])
        if code != 65 or LOST not in errors:
            break
    if code == 65:
        return "refused", numbers, note + errors.strip().splitlines()[-1].split(".onnx: ", 1)[-1]
    trains = re.search(r"trains (\d+) of (\d+) parameters", output)
    if code != 0 or trains is None:
        return "FAIL", numbers, f"{note}exit code {code}: {(errors.strip().splitlines() or [''])[-1]}"
    if int(trains[1]) != numbers:
        return "FAIL", numbers, f"{note}trains {trains[1]} elements"
    error, where = gradient_error(pipeshard, path, folder, module, inputs, freeze)
    if error is None:
        return "FAIL", numbers, f"{note}gradients: {where}"
    return "PASS" if error < 1e-4 else "FAIL", numbers, f"{note}gradients within {error:.1e} ({where})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeshard")
    parser.add_argument("--only", default="")
    parser.add_argument("--work", default="/tmp/real_models")
    parser.add_argument("--table", help="write the table, as Markdown, to this file")
    arguments = parser.parse_args()
    lines = ["| architecture | trainable elements | result | |", "|---|---|---|---|"]
    failed = False
    for name in [*MODELS, *TORCH_SCRIPT]:
        if not re.search(arguments.only, name):
            continue
        try:
            result, numbers, note = trial(arguments.pipeshard, name, arguments.work)
        except Exception as error:  # one of them shall not end the others
            result, numbers, note = "FAIL", 0, f"{type(error).__name__}: {error}"
        failed = failed or result == "FAIL"
        lines.append(f"| {name} | {numbers:,} | {result} | {note[:300]} |")
        print(lines[-1], flush=True)
    if arguments.table:
        with open(arguments.table, "w", encoding="utf-8") as table:
            table.write("\n".join(lines) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
