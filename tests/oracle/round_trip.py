#!/usr/bin/env python3
"""There and back: a PyTorch module is exported, trained by pipeshard, exported again, and is the same in ONNX Runtime
and PyTorch.

    round_trip.py PIPESHARD [--only REGEX] [--work DIR]

Each architecture of real_modules.py is exported as in real_models.py, trained for three steps on two stages with a
checkpoint, and written by `pipeshard export` as .onnx and as safetensors. The loss of the weights after step 3 is what
step 4 of the run says. PASS: ONNX Runtime's loss of the .onnx file, and PyTorch's of the module that has loaded the
tensors, are that to 1e-6 (or four times as far as PyTorch's own float32 loss is from its float64 one), and load_state_dict
misses no key but buffers that an export does not have, and parameters that the forward pass does not use. Names of tied
ones that no call mentions (T5's "shared") are given by --tied.

Needs what real_models.py needs, and onnxruntime.
"""
import argparse
import json
import os
import re
import shutil
import sys
import warnings

import numpy as np
import onnxruntime
import safetensors.torch
import torch

import real_models
from real_modules import MODELS, ROWS

warnings.filterwarnings("ignore")


def require(command):
    code, _, errors = real_models.run(command)
    if code != 0:
        raise RuntimeError(errors.strip().splitlines()[-1])


def exported(module, inputs, path):
    """By the default call, or the one that a message asks for; with the options that planning needs."""
    for options in ({}, {"optimize": False}):
        real_models.export(module, inputs, path, **options)
        yield options


def train(pipeshard, path, folder, inputs, extra):
    """The losses of four steps; a checkpoint after the third is left in folder/saved."""
    names = [value.name for value in onnxruntime.InferenceSession(path).get_inputs()]
    data, plan, saved = (os.path.join(folder, name) for name in ("data.npz", "plan", "saved"))
    shutil.rmtree(saved, ignore_errors=True)
    np.savez(data, **{name: value.numpy() for name, value in zip(names, inputs)})
    require([pipeshard, "plan", path, "--dim", f"batch={ROWS}", "--cluster", "1x2", "--stages", "uniform:2",
             "--microbatches", "2", "--optimizer", "adamw:lr=1e-3", "-o", plan, *extra])
    losses = []
    for steps in (3, 4):
        log = os.path.join(folder, "run.json")
        require([pipeshard, "run", plan, "--data", data, "--steps", str(steps), "--checkpoint", saved, "--json", log])
        with open(log, encoding="utf-8") as file:
            losses += [step["loss"] for step in json.load(file)["steps"]]
    return names, losses


def is_lost(key, module, unused):
    """Whether load_state_dict misses something that an export has: no buffer that the forward pass does not read, no
    parameter that it does not use."""
    return key in parameters(module) and not any(name in unused for name in names_of(module, key))


def parameters(module):
    return dict(module.named_parameters(remove_duplicate=False))


def names_of(module, key):
    """All names of a parameter."""
    every = parameters(module)
    return [name for name, value in every.items() if value is every[key]]


def tied_options(module, tensors):
    """The names that the file of tensors has not, of parameters that it has."""
    for key in parameters(module):
        known = [name for name in names_of(module, key) if name in tensors]
        if known and key not in tensors:
            yield from ("--tied", f"{known[0]}={key}")


def trial(pipeshard, name, work):
    build, *makers = MODELS[name]
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    module = build().eval()
    inputs = tuple(make(generator) for make in makers)
    folder = os.path.join(work, re.sub(r"\W+", "_", name))
    os.makedirs(folder, exist_ok=True)
    path, back, tensors = (os.path.join(folder, name) for name in ("model.onnx", "trained.onnx", "trained.safetensors"))
    frozen = [name for name, value in module.named_parameters() if not value.requires_grad]
    module(*inputs).backward()
    unused = {name for name, value in module.named_parameters() if value.requires_grad and value.grad is None}
    for options in exported(module, inputs, path):
        extra = real_models.freeze_options(path, frozen)
        try:
            names, losses = train(pipeshard, path, folder, inputs, extra)
            break
        except RuntimeError as error:
            if "the batch cannot be cut" in str(error):
                return "refused", str(error).split(".onnx: ", 1)[-1]
            if options or real_models.LOST not in str(error):
                raise
    want = losses[3]
    export = [pipeshard, "export", os.path.join(folder, "saved", "step-000003"), "-o", back, "--safetensors", tensors]
    require(export)
    require([*export, *tied_options(module, safetensors.torch.load_file(tensors))])
    session = onnxruntime.InferenceSession(back)
    fed = dict(zip(names, (value.numpy() for value in inputs)))
    runtime = min((np.ravel(value)[0] for value in session.run(None, fed) if np.size(value) == 1),
                  key=lambda value: abs(value - want))
    state = safetensors.torch.load_file(tensors)
    missing, unexpected = module.load_state_dict(state, strict=False)
    lost = [key for key in missing if is_lost(key, module, unused)]
    loss = module(*inputs).item()
    with real_models.InFloat64():
        exact = module.double()(*real_models.double(inputs)).item()
    bound = max(1e-6, 4 * abs(loss - exact) / abs(exact))
    errors = [abs(runtime - want) / abs(want), abs(loss - want) / abs(want)]
    moved = abs(losses[3] - losses[0]) / abs(losses[0])
    note = f"loss {losses[0]:.6f} -> {want:.6f}; ONNX Runtime {errors[0]:.0e}, PyTorch {errors[1]:.0e}"
    if lost or unexpected:
        return "FAIL", f"{note}; missing {lost[:4]}, unexpected {list(unexpected)[:4]}"
    return ("PASS" if max(errors) <= bound and moved > 10 * bound else "FAIL"), note


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeshard")
    parser.add_argument("--only", default="")
    parser.add_argument("--work", default="/tmp/round_trip")
    arguments = parser.parse_args()
    failed = False
    for name in MODELS:
        if not re.search(arguments.only, name):
            continue
        try:
            result, note = trial(arguments.pipeshard, name, arguments.work)
        except Exception as error:  # one of them shall not end the others
            result, note = "FAIL", f"{type(error).__name__}: {error}"
        failed = failed or result == "FAIL"
        print(f"| {name} | {result} | {note[:300]} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
