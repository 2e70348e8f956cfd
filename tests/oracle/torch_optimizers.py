"""Compares optimizers, schedules of the learning rate, groups of parameters, clipping and moving averages with PyTorch, in float64.

Usage (with the environment of tools/export/setup.sh): torch_optimizers.py PIPESHARD

PIPESHARD is the built command. Each case trains examples/mlp.onnx for twelve steps on two workers; PyTorch takes the same
steps with its own optimizer and scheduler. Lion and LAMB, which PyTorch does not have, are written out after their papers; Muon's
iterations are in float64, not in bfloat16.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torch.optim._muon as muon_module
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
DECAY = 0.8  # of moving averages


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


class Lamb(torch.optim.Optimizer):
    """Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, algorithm 2, with phi(z) = z."""

    def __init__(self, parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
                state["step"] += 1
                state["mean"].mul_(first).add_(parameter.grad, alpha=1 - first)
                state["square"].mul_(second).addcmul_(parameter.grad, parameter.grad, value=1 - second)
                mean = state["mean"] / (1 - first ** state["step"])
                square = state["square"] / (1 - second ** state["step"])
                direction = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * parameter
                norms = parameter.norm(), direction.norm()
                trust = norms[0] / norms[1] if norms[0] > 0 and norms[1] > 0 else 1.0
                parameter -= group["lr"] * trust * direction


class Muon:
    """torch.optim.Muon for matrices and AdamW for what is none, or excluded; its iterations in float64."""

    def __init__(self, parameters, **options):
        groups = list(parameters)
        adam_rate = options.pop("adamw_lr", 1e-3)
        matrices, others = [], []
        for group in groups:
            is_matrix = group.pop("muon", 1) and group["params"][0].ndim == 2
            (matrices if is_matrix else others).append(group)
        decay = options.get("weight_decay", 0.1)
        muon_module._zeropower_via_newtonschulz = orthogonalized
        self.both = [torch.optim.Muon(matrices, **options), torch.optim.AdamW(others, lr=adam_rate, weight_decay=decay)]

    def step(self):
        for optimizer in self.both:
            optimizer.step()


def orthogonalized(matrix, coefficients, steps, eps):
    """What torch.optim.Muon does in bfloat16."""
    a, b, c = coefficients
    tall = matrix.size(0) > matrix.size(1)
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


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
    "lamb": ("lamb:lr=0.01", lambda p: Lamb(p, lr=0.01)),
    "lamb_decay": ("lamb:lr=0.01,weight_decay=0.1,schedule=cosine,warmup=3,steps=12", lambda p: Lamb(p, lr=0.01, weight_decay=0.1),
                   transformers_schedule("cosine_schedule_with_warmup", num_warmup_steps=3, num_training_steps=12)),
    "adafactor": ("adafactor", lambda p: torch.optim.Adafactor(p, foreach=False)),
    "adafactor_decay": ("adafactor:lr=0.3,weight_decay=0.1,d=1.5,beta2_decay=-0.6,eps1=1e-8,eps2=0.01",
                        lambda p: torch.optim.Adafactor(p, lr=0.3, weight_decay=0.1, d=1.5, beta2_decay=-0.6, eps=(1e-8, 0.01), foreach=False)),
    "muon": ("muon", lambda p: Muon(p)),
    "muon_match_rms": ("muon:lr=0.01,momentum=0.9,nesterov=0,weight_decay=0.2,ns_steps=7,match_rms=1,adamw_lr=0.002",
                       lambda p: Muon(p, lr=0.01, momentum=0.9, nesterov=False, weight_decay=0.2, ns_steps=7,
                                      adjust_lr_fn="match_rms_adamw", adamw_lr=0.002)),
    "muon_and_adamw": ("muon:lr=0.02", lambda p: Muon(p, lr=0.02), None, [("dense2", {"muon": 0})]),
    "muon_groups": ("muon:lr=0.02,adamw_lr=0.01", lambda p: Muon(p, lr=0.02, adamw_lr=0.01), None,
                    [("bias", {"lr": 0.001}), ("dense1.*weight", {"lr": 0.004}), ("dense2.*weight", {"muon": 0, "lr": 0.003})]),
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


# Further options, and what PyTorch does with the parameters between the backward pass and the optimizer's step. The
# gradients of the model have a norm of about 0.5.
CLIPPING = {
    "norm": (["--clip-norm", "0.2"], lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.2)),
    "norm_not_reached": (["--clip-norm", "1000"], lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 1000)),
    "value": (["--clip-value", "0.01"], lambda parameters: torch.nn.utils.clip_grad_value_(parameters, 0.01)),
}


def settings_of(name, groups):
    settings = {}
    for pattern, wanted in groups:
        if re.search(pattern, name):
            settings.update(wanted)
    return settings


def train(make, schedule, groups, clip, batch):
    """PyTorch's losses, parameters and their moving averages; `clip` is called between backward pass and step."""
    model = onnx_file.load(MODEL)
    module = onnx_file.rebuild(model)
    named = {name: module.get_parameter(name) for name in onnx_file.parameters(model)}
    optimizer = make([{"params": [parameter], **settings_of(name, groups)} for name, parameter in named.items()])
    scheduler = schedule(optimizer) if schedule else None
    losses = []
    averages = {name: parameter.detach().clone() for name, parameter in named.items()}
    for _ in range(STEPS):
        module.zero_grad()
        losses.append(step_reference.backward(module, onnx_file.load_batch(batch, model)))
        clip(list(named.values()))
        optimizer.step()
        if scheduler:
            scheduler.step()
        for name, average in averages.items():
            average.lerp_(named[name].detach(), 1 - DECAY)
    return losses, [{name: tensor.detach().numpy() for name, tensor in tensors.items()} for tensors in (named, averages)]


def check(pipeshard, name, folder, batch, clipping=None):
    text, make, schedule, groups = (*CASES[name], *(None, [])[len(CASES[name]) - 2:])
    options, clip = CLIPPING[clipping] if clipping else ([], lambda parameters: None)
    losses, (parameters, averages) = train(make, schedule, groups, clip, batch)
    options = list(options)
    for pattern, wanted in groups:
        options += ["--group", pattern + ":" + ",".join(f"{key}={value}" for key, value in wanted.items())]
    subprocess.run([pipeshard, "validate", MODEL, "--cluster", "1x2", "--stages", "uniform:2", "--microbatches", "2", "--precision",
                    "float64", "--optimizer", text, *options, "--ema", str(DECAY), "--steps", str(STEPS), "--data", batch, "--dump",
                    folder / (name + (clipping or ""))],
                   check=True, stdout=subprocess.DEVNULL)
    print(f"{name}{f' clipped by {clipping}' if clipping else ''}: losses {losses[0]:.6f} to {losses[-1]:.6f}; ", end="")
    last = dumped(folder / (name + (clipping or "")) / "planned", STEPS)
    compare("parameter", last, parameters)
    compare("average", {f"average/{name}": last[f"state/{name}/moving_average"] for name in averages}, averages)
    np.testing.assert_allclose(last["loss"], losses[-1], rtol=1e-9)


def main(pipeshard):
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        batch = folder / "batch.npz"
        subprocess.run([sys.executable, EXPORT / "make_data.py", MODEL, "--batch", "8", "--seed", "1", "--output", batch], check=True)
        for name in CASES:
            check(pipeshard, name, folder, batch)
        for clipping in CLIPPING:
            for name in ("momentum", "adamw"):
                check(pipeshard, name, folder, batch, clipping)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
