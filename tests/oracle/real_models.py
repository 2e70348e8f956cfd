#!/usr/bin/env python3
"""Unmodified modules, exported by default calls, trained by pipeshard, compared with PyTorch.

    real_models.py PIPESHARD [--only REGEX] [--plans NAME,...] [--precision TYPE] [--fixed-batch] [--work DIR]
                   [--table FILE]

Each architecture (real_modules.py) is built from its library as people build it (a small configuration, random
weights), exported by torch.onnx.export without options, or by its dynamo=False, the TorchScript exporter, and
validated with 4 microbatches on 4 devices: 4 stages, 2 stages of 2 devices each that share the rows, `--stages auto`,
and 2 stages with `--method auto`; those of more_modules.py with the first of these plans only. Where pipeshard
refuses the file because the exporter's optimizer has lost parameters or a detach(), it is exported again by the line
that the message prints. Then it says

    PASS     with each of these plans every tensor equals one device; pipeshard trains as many elements as PyTorch
             does; the gradients of all parameters equal PyTorch's in float64: those of the file to 1e-4 or four
             times PyTorch's own error in float32, those of a file exported in float64 to 1e-8 (relative to the
             largest of each tensor, at least a millionth of the largest of all). Modules are in evaluation
             mode, or where their name says so in training mode, with `--mode training`
             With --precision bfloat16 or float16 the first two alone. With --fixed-batch files are exported
             without dynamic shapes, and take one microbatch
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
from torch.overrides import TorchFunctionMode

from more_modules import MORE
from real_modules import MODELS, ROWS, TORCH_SCRIPT, TRAINING_MODE

warnings.filterwarnings("ignore")

RATE = 2**20  # so large that what a parameter was before is small beside its gradient
TRAINS_IN_MODE = ["--mode", "training"]
LOST = "the exporter's optimizer has "  # changed parameters, removed a detach()


FIXED = {"fixed_batch": True}


def export(module, inputs, path, fixed_batch=False, **options):
    axes = [{getattr(module, "rows_axis", 0): "batch"} for _ in inputs]
    if fixed_batch:
        shapes = {}
    elif options.get("dynamo", True):
        shapes = {"dynamic_shapes": tuple(axes)}
    else:
        names = [f"input{i}" for i in range(len(inputs))]
        shapes = {"input_names": names, "dynamic_axes": dict(zip(names, axes))}
    torch.onnx.export(module, inputs, path, verbose=False, **shapes, **options)


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    return done.returncode, done.stdout, done.stderr


PLANS = {  # each is validated with 4 microbatches on 4 devices
    "4 stages": ["--stages", "uniform:4"],
    "2x2": ["--stages", "uniform:2"],
    "stages auto": ["--stages", "auto"],
    "method auto": ["--stages", "uniform:2", "--method", "auto"],
}
MORE_PLANS = {"tensor-parallel": ["--stages", "uniform:1", "--method", "tensor-parallel"]}  # if they are asked for


def cut(microbatches, fixed_batch):
    return ["--microbatches", "1"] if fixed_batch else ["--dim", f"batch={ROWS}", "--microbatches", microbatches]


def trained_parameters(pipeshard, path, folder, inputs, precision, extra, fixed_batch):
    """The parameters after a step of SGD that pipeshard takes, by the names of the file."""
    names = [value.name for value in onnx.load(path, load_external_data=False).graph.input]
    data, plan, dump = (os.path.join(folder, name) for name in ("data.npz", "gradients.plan", "dump"))
    np.savez(data, **{name: value.numpy() for name, value in zip(names, inputs)})
    for old in (plan, dump):
        shutil.rmtree(old, ignore_errors=True)
    # The statistics of a batch normalisation in training mode are those of a microbatch.
    microbatches = "1" if TRAINS_IN_MODE[0] in extra else "2"
    for command in (["plan", path, *cut(microbatches, fixed_batch), "--cluster", "1x2", "--stages", "uniform:2",
                     "--precision", precision, "--optimizer", f"sgd:lr={RATE}", "-o", plan, *extra],
                    ["run", plan, "--data", data, "--steps", "1", "--dump", dump]):
        code, _, errors = run([pipeshard, *command])
        if code != 0:
            raise RuntimeError(errors.strip().splitlines()[-1])
    taken = {}
    for file in glob.glob(os.path.join(dump, "*.safetensors")):
        for name, tensor in safetensors.numpy.load_file(file).items():
            if name.startswith("parameter/"):
                taken[name.split("/", 1)[1]] = tensor.astype(np.float64)
    return taken


def names_in_file(path, module, taken):
    """By the module's parameters (a tied one has several names): the name under which the file has it."""
    stored = {}  # TorchScript: a weight under a name of the exporter's, found by its numbers
    for tensor in onnx.load(path).graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if tensor.name in taken and array.dtype.kind == "f":
            stored[array.tobytes()] = stored[array.T.tobytes()] = tensor.name
    names_of = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names_of.setdefault(parameter, []).append(name)
    return {names[0]: next((name for name in names if name in taken),
                           stored.get(parameter.detach().numpy().tobytes(), names[0]))
            for parameter, names in names_of.items()}


def torch_gradients(module, inputs):
    module.zero_grad()
    module(*inputs).backward()
    return {name: parameter.grad.double().numpy() for name, parameter in module.named_parameters()
            if parameter.grad is not None}


def trained_gradients(module, taken, names):
    """Of each parameter, how far it went: as the module has it, and transposed (as the file may have it)."""
    found = {}
    for name, parameter in module.named_parameters():
        before = parameter.detach().double().numpy()
        after = taken.get(names[name])
        if after is not None:
            found[name] = [(before - way) / RATE for way in (after, after.T) if way.shape == before.shape]
    return found


def gradient_errors(found, exact):
    """Of each parameter: the largest difference of its gradient (the best of those found), relative to the
    tensor's largest."""
    # Gradients that are zero but for rounding (a key's bias under a softmax) are judged by the largest of all.
    least = 1e-6 * max(np.abs(gradient).max() for gradient in exact.values())
    errors = {}
    for name, gradient in exact.items():
        if not found.get(name):
            raise RuntimeError(f"no gradient of {name}")
        errors[name] = min(np.abs(way - gradient).max() for way in found[name]) / max(least, np.abs(gradient).max())
    return errors


class InFloat64(TorchFunctionMode):
    """What a module asks for in float32 (logits before a loss, tables of angles) is computed in float64 too. Numbers
    of Python are rounded to float32, as the exporter writes them."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        def wide(value):
            if isinstance(value, float):
                return float(np.float32(value))
            return torch.float64 if value is torch.float32 else value

        if function is torch.Tensor.float:
            function = torch.Tensor.double
        return function(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})


def double(inputs):
    return tuple(value.double() if value.is_floating_point() else value for value in inputs)


def compare_gradients(pipeshard, path, folder, module, inputs, options, extra):
    """(pass, note). In float32, where each parameter's gradient is to be within 1e-4 of PyTorch's in float64, or
    four times as far as PyTorch's own in float32; and in float64, of a file that is exported in float64, 1e-8."""
    own = {name: [gradient] for name, gradient in torch_gradients(module, inputs).items()}
    fixed_batch = options.get("fixed_batch", False)
    taken = trained_parameters(pipeshard, path, folder, inputs, "float32", extra, fixed_batch)
    found = trained_gradients(module, taken, names_in_file(path, module, taken))
    module.double()
    with InFloat64():
        exact = torch_gradients(module, double(inputs))
    bounds = {name: max(1e-4, 4 * error) for name, error in gradient_errors(own, exact).items()}
    errors = gradient_errors(found, exact)
    worst = max(errors, key=lambda name: errors[name] / bounds[name])
    notes = [f"float32 {errors[worst]:.0e}"]
    passes = errors[worst] <= bounds[worst]
    if not passes:
        notes[-1] += f" ({worst})"
    exact_path = os.path.join(folder, "model64.onnx")
    try:
        with InFloat64():
            export(module, double(inputs), exact_path, **options)
    except Exception as error:  # the exporter's own
        return passes, ", ".join([*notes, f"PyTorch does not export it in float64: {type(error).__name__}"])
    taken = trained_parameters(pipeshard, exact_path, folder, double(inputs), "float64", extra, fixed_batch)
    errors = gradient_errors(trained_gradients(module, taken, names_in_file(exact_path, module, taken)), exact)
    worst = max(errors, key=errors.get)
    notes.append(f"float64 {errors[worst]:.0e}")
    bound = getattr(module, "float64_bound", 1e-8)
    if errors[worst] > bound:
        notes[-1] += f" ({worst})"
    return passes and errors[worst] <= bound, ", ".join(notes)


def freeze_options(path, names):
    """Files do not say which parameters the module does not train."""
    there = {tensor.name for tensor in onnx.load(path, load_external_data=False).graph.initializer}
    options = []
    for name in names:
        if name in there:
            options += ["--freeze", f"^{re.escape(name)}$"]
    return options


def try_plans(pipeshard, path, extra, numbers, plans, fixed_batch):
    """(exit code, what stderr said, what failed)"""
    for plan in plans:
        code, output, errors = run([pipeshard, "validate", path, *cut("4", fixed_batch), "--cluster", "1x4",
                                    "--steps", "1", *(PLANS | MORE_PLANS)[plan], *extra])
        said = (errors.strip().splitlines() or [""])[-1]
        if code != 0:
            return code, errors, f"{plan}: exit code {code}: {said}"
        trains = re.search(r"trains (\d+) of (\d+) parameters", output)
        if trains is None or int(trains[1]) != numbers:
            return code, errors, f"{plan}: trains {trains and trains[1]} elements"
    return 0, "", ""


def trial(pipeshard, name, work, plans, precision, fixed_batch):
    build, *makers = {**MODELS, **MORE, **TORCH_SCRIPT, **TRAINING_MODE}[name]
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    module = build().train(name in TRAINING_MODE)
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
        options = options | (FIXED if fixed_batch else {})
        try:
            export(module, inputs, path, **options)
        except Exception as error:  # the exporter's own
            return "refused", numbers, f"PyTorch does not export it: {type(error.__cause__ or error).__name__}"
        extra = freeze_options(path, frozen) + (TRAINS_IN_MODE if name in TRAINING_MODE else [])
        code, errors, failure = try_plans(pipeshard, path, ["--precision", precision, *extra], numbers, plans,
                                          fixed_batch)
        if code != 65 or LOST not in errors:
            break
    if code == 65:
        return "refused", numbers, note + errors.strip().splitlines()[-1].split(".onnx: ", 1)[-1]
    if failure:
        return "FAIL", numbers, note + failure
    if precision != "float32":
        return "PASS", numbers, note + precision
    passes, gradients = compare_gradients(pipeshard, path, folder, module, inputs, options, extra)
    return "PASS" if passes else "FAIL", numbers, f"{note}gradients: {gradients}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeshard")
    parser.add_argument("--only", default="")
    parser.add_argument("--plans", default=",".join(PLANS), help="of: " + ", ".join(PLANS | MORE_PLANS))
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--fixed-batch", action="store_true")
    parser.add_argument("--work", default="/tmp/real_models")
    parser.add_argument("--table", help="write the table, as Markdown, to this file")
    arguments = parser.parse_args()
    lines = ["| architecture | trainable elements | result | |", "|---|---|---|---|"]
    failed = False
    for name in [*MODELS, *TORCH_SCRIPT, *TRAINING_MODE, *MORE]:
        if not re.search(arguments.only, name):
            continue
        try:
            plans = arguments.plans.split(",")
            plans = plans[:1] if name in MORE else plans
            result, numbers, note = trial(arguments.pipeshard, name, arguments.work, plans, arguments.precision,
                                          arguments.fixed_batch)
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
