"""Compares optimizers, schedules of the learning rate and groups of parameters with torch.optim, in float64.

Usage (with the environment of tools/export/setup.sh): torch_optimizers.py PIPESHARD

PIPESHARD is the built command. Each case trains examples/mlp.onnx for twelve steps on two workers; PyTorch takes the same
steps with its own optimizer and scheduler. Lion, which PyTorch does not have, is written out after its paper.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from torch.optim import lr_scheduler

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXPORT = ROOT / "tools" / "export"
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(EXPORT)]
import onnx_file  # noqa: E402
import step_reference  # noqa: E402
from torch_step import compare, dumped  # noqa: E402

MODEL = ROOT / "examples" / "mlp.onnx"
STEPS = 12


class Lion(torch.optim.Optimizer):
    """Symbolic Discovery of Optimization Algorithms, algorithm 2."""

    def __init__(self, parameters, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                direction = (first * mean + (1 - first) * parameter.grad).sign()
                parameter -= group["lr"] * (direction + group["weight_decay"] * parameter)
                mean.mul_(second).add_(parameter.grad, alpha=1 - second)


def warmed(optimizer, steps, start, then):
    """A linear warm-up, then another scheduler."""
    if not steps:
        return then
    # LinearLR refuses 0; its factor is that of LambdaLR here
    warmup = (lr_scheduler.LinearLR(optimizer, start_factor=start, total_iters=steps) if start else
              lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, n / steps)))
    return lr_scheduler.SequentialLR(optimizer, [warmup, then], [steps])


def transformers_schedule(name, **options):
    return lambda optimizer: getattr(transformers, f"get_{name}")(optimizer, **options)


# --optimizer, PyTorch's of the parameters, its scheduler (or none), --group's, and what they set: (pattern, settings)
CASES = {
    "momentum": ("sgd:lr=0.1,momentum=0.9,weight_decay=0.01", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)),
    "nesterov": ("sgd:lr=0.1,momentum=0.9,nesterov=1", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)),
    "adam": ("adam:lr=0.01,weight_decay=0.1", lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1)),
    "adamw": ("adamw:lr=0.01", lambda p: torch.optim.AdamW(p, lr=0.01)),
    "rmsprop": ("rmsprop", lambda p: torch.optim.RMSprop(p)),
    "rmsprop_momentum": ("rmsprop:lr=0.001,alpha=0.9,momentum=0.8,weight_decay=0.1,eps=1e-6",
                         lambda p: torch.optim.RMSprop(p, lr=0.001, alpha=0.9, momentum=0.8, weight_decay=0.1, eps=1e-6)),
    "adagrad": ("adagrad", lambda p: torch.optim.Adagrad(p)),
    "adagrad_decay": ("adagrad:lr=0.1,lr_decay=0.2,weight_decay=0.1",
                      lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.2, weight_decay=0.1)),
    "lion": ("lion:lr=0.001,weight_decay=0.1", lambda p: Lion(p, lr=0.001, weight_decay=0.1)),
    "linear": ("sgd:lr=0.1,schedule=linear,steps=10", lambda p: torch.optim.SGD(p, lr=0.1),
               transformers_schedule("linear_schedule_with_warmup", num_warmup_steps=0, num_training_steps=10)),
    "linear_warmup": ("adamw:lr=0.01,schedule=linear,warmup=4,steps=10", lambda p: torch.optim.AdamW(p, lr=0.01),
                      transformers_schedule("linear_schedule_with_warmup", num_warmup_steps=4, num_training_steps=10)),
    "constant_warmup": ("adamw:lr=0.01,warmup=5", lambda p: torch.optim.AdamW(p, lr=0.01),
                        transformers_schedule("constant_schedule_with_warmup", num_warmup_steps=5)),
    "cosine_warmup": ("adamw:lr=0.01,schedule=cosine,warmup=3,steps=12", lambda p: torch.optim.AdamW(p, lr=0.01),
                      transformers_schedule("cosine_schedule_with_warmup", num_warmup_steps=3, num_training_steps=12)),
    "cosine_final": ("sgd:lr=0.1,schedule=cosine,warmup=3,start_factor=0.25,steps=12,final=0.02", lambda p: torch.optim.SGD(p, lr=0.1),
                     lambda o: warmed(o, 3, 0.25, lr_scheduler.CosineAnnealingLR(o, T_max=9, eta_min=0.02))),
    "step": ("sgd:lr=0.1,schedule=step,warmup=2,start_factor=0.5,step_size=3,gamma=0.5", lambda p: torch.optim.SGD(p, lr=0.1),
             lambda o: warmed(o, 2, 0.5, lr_scheduler.StepLR(o, step_size=3, gamma=0.5))),
    "one_cycle": ("sgd:lr=0.1,momentum=0.9,schedule=one-cycle,steps=12,pct_start=0.4", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
                  lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=12, pct_start=0.4, cycle_momentum=False)),
    "groups": ("adamw:lr=0.01,schedule=cosine,steps=12,weight_decay=0.1", lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
               transformers_schedule("cosine_schedule_with_warmup", num_warmup_steps=0, num_training_steps=12),
               [("bias", {"weight_decay": 0.0}), ("^dense[12]", {"lr": 0.002})]),
}


def settings_of(name, groups):
    settings = {}
    for pattern, wanted in groups:
        if re.search(pattern, name):
            settings.update(wanted)
    return settings


def train(make, schedule, groups, batch):
    """PyTorch's losses and parameters."""
    model = onnx_file.load(MODEL)
    module = onnx_file.rebuild(model)
    named = {name: module.get_parameter(name) for name in onnx_file.parameters(model)}
    optimizer = make([{"params": [parameter], **settings_of(name, groups)} for name, parameter in named.items()])
    scheduler = schedule(optimizer) if schedule else None
    losses = []
    for _ in range(STEPS):
        module.zero_grad()
        losses.append(step_reference.backward(module, onnx_file.load_batch(batch, model)))
        optimizer.step()
        if scheduler:
            scheduler.step()
    return losses, {name: parameter.detach().numpy() for name, parameter in named.items()}


def check(pipeshard, name, folder, batch):
    text, make, schedule, groups = (*CASES[name], *(None, [])[len(CASES[name]) - 2:])
    losses, parameters = train(make, schedule, groups, batch)
    options = []
    for pattern, wanted in groups:
        options += ["--group", pattern + ":" + ",".join(f"{key}={value}" for key, value in wanted.items())]
    subprocess.run([pipeshard, "validate", MODEL, "--cluster", "1x2", "--stages", "uniform:2", "--microbatches", "2", "--precision",
                    "float64", "--optimizer", text, *options, "--steps", str(STEPS), "--data", batch, "--dump", folder / name],
                   check=True, stdout=subprocess.DEVNULL)
    print(f"{name}: losses {losses[0]:.6f} to {losses[-1]:.6f}; ", end="")
    last = dumped(folder / name / "planned", STEPS)
    compare("parameter", last, parameters)
    np.testing.assert_allclose(last["loss"], losses[-1], rtol=1e-9)


def main(pipeshard):
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        batch = folder / "batch.npz"
        subprocess.run([sys.executable, EXPORT / "make_data.py", MODEL, "--batch", "8", "--seed", "1", "--output", batch], check=True)
        for name in CASES:
            check(pipeshard, name, folder, batch)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
