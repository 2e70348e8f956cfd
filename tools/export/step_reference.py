"""Take training steps with PyTorch in float64: what pipeshard's own results are compared with.

Rebuilds the module that export.py exported, loads the parameters from the .onnx file, and runs forward and backward on
the given batch. The mathematics is that of the file: a constant that it holds in float32 (an epsilon, GELU's factors)
has that rounded value here too, so a float64 evaluation of the file agrees to float64 rounding.

--gradients receives `loss` and the gradient of every parameter, under the name of its ONNX initializer, of the first
step. --parameters receives `losses` (of every step), every parameter after the last step, and all running statistics
after it. Both are .npz files of float64 arrays.

Batch normalisation sees one microbatch at a time, so that --microbatches changes the results: loss and gradients are
those of the whole batch's mean, and every microbatch updates the running statistics in turn. As ONNX defines it, the
running variance follows the population variance of the batch, not the sample variance that PyTorch takes.
"""

import argparse
import math

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

import onnx_file

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


class OnnxSemantics(TorchFunctionMode):
    """PyTorch's mathematics where it differs from that of an exported file.

    Python scalars that meet tensors are rounded to float32, as the exporter does when it writes them to a file.
    Tensors are not: where a module casts to float32, the file of a float32 module has nothing.
    Batch normalisation updates its running statistics as ONNX's BatchNormalization does.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.batch_norm:
            return self._batch_norm(*args, **(kwargs or {}))
        if function is torch.nn.functional.scaled_dot_product_attention:
            return self._attention(*args, **(kwargs or {}))
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        return function(*map(self._in_file, args),
                        **{key: self._in_file(value) for key, value in (kwargs or {}).items()})

    @classmethod
    def _batch_norm(cls, x, mean, variance, weight, bias, training, momentum, eps):
        if training:
            kept = cls._round(1.0 - momentum)
            axes = [axis for axis in range(x.dim()) if axis != 1]
            with torch.no_grad():
                mean.copy_(kept * mean + (1.0 - kept) * x.mean(axes))
                variance.copy_(kept * variance + (1.0 - kept) * x.var(axes, correction=0))
            mean = variance = None
        return torch.batch_norm(x, weight, bias, mean, variance, training, momentum, cls._round(eps), False)

    @classmethod
    def _attention(cls, query, *args, scale=None, **kwargs):
        """Queries and keys are each multiplied by the root of the scale, a float32 in files of the dynamo exporter."""
        root = cls._round(math.sqrt(query.shape[-1] ** -0.5 if scale is None else scale))
        return torch.nn.functional.scaled_dot_product_attention(query, *args, scale=root ** 2, **kwargs)

    @classmethod
    def _in_file(cls, argument):
        if isinstance(argument, float):
            return cls._round(argument)
        return torch.float64 if argument is torch.float32 else argument

    @staticmethod
    def _round(value: float) -> float:
        with np.errstate(over="ignore"):
            rounded = float(np.float32(value))
        largest = float(np.finfo(np.float32).max)
        return math.copysign(largest, value) if math.isinf(rounded) and math.isfinite(value) else rounded


def forward(module: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss as the file defines it."""
    with OnnxSemantics():
        return module(**batch)


def backward(module: torch.nn.Module, batch: dict[str, torch.Tensor], microbatches: int = 1) -> float:
    """The batch's loss, whose gradients are added to the parameters'; one microbatch after the other."""
    parts = [dict(zip(batch, tensors)) for tensors in zip(*(tensor.chunk(microbatches) for tensor in batch.values()))]
    terms = [module.mean_over(**part) for part in parts]
    total = 0.0
    for part, count in zip(parts, terms):
        if count:
            loss = forward(module, part) * (count / sum(terms))
            loss.backward()
            total += loss.item()
        else:
            with torch.no_grad():  # nothing to learn, but the running statistics move
                forward(module, part)
    return total


def optimizer(specification: str, parameters) -> torch.optim.Optimizer:
    """From "NAME:KEY=VALUE,...". Keys are torch.optim's; Adam's two betas are written beta1 and beta2."""
    name, _, rest = specification.partition(":")
    if name not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer '{name}'; known are {', '.join(OPTIMIZERS)}")
    options = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"'{item}' is not KEY=VALUE")
        options[key] = value.lower() == "true" if value.lower() in ("true", "false") else float(value)
    if "lr" not in options:
        raise ValueError("give a learning rate: lr=...")
    betas = [options.pop(key, None) for key in ("beta1", "beta2")]
    if name != "sgd":
        options["betas"] = tuple(default if beta is None else beta for beta, default in zip(betas, (0.9, 0.999)))
    return OPTIMIZERS[name](parameters, foreach=False, **options)


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="step_reference.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
               "  make_data.py gpt2.onnx --output batch.npz\n"
               "  step_reference.py gpt2.onnx --data batch.npz --gradients grads.npz\n"
               "  step_reference.py gpt2.onnx --data batch.npz --optimizer sgd:lr=0.1,momentum=0.9 --steps 3 \\\n"
               "      --parameters trained.npz\n")
    parser.add_argument("model", metavar="MODEL.onnx", help="a file that export.py made")
    parser.add_argument("--data", required=True, nargs="+", metavar="NPZ",
                        help="inputs by name; with several files, step i takes file i modulo their number")
    parser.add_argument("--gradients", metavar="NPZ", help="write the first step's loss and gradients")
    parser.add_argument("--parameters", metavar="NPZ", help="write the losses and the updated parameters")
    parser.add_argument("--optimizer", metavar="SPEC",
                        help="sgd:lr=0.1,momentum=0.9 | adam:lr=1e-3,beta1=0.9,eps=1e-8 | adamw:lr=1e-3 "
                             "(torch.optim's names, defaults and semantics)")
    parser.add_argument("--steps", type=int, default=1, help="training steps (default: %(default)s)")
    parser.add_argument("--microbatches", type=int, default=1, metavar="N",
                        help="equal parts that a batch is computed in, one after the other (default: %(default)s)")
    options = parser.parse_args()
    if options.microbatches < 1:
        parser.error("--microbatches must be at least 1")
    if not options.gradients and not options.parameters:
        parser.error("nothing to write: give --gradients, --parameters or both")
    if bool(options.parameters) != bool(options.optimizer):
        parser.error("--parameters and --optimizer need each other")
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    return parser, options


def main() -> None:
    parser, options = parse_arguments()
    model = onnx_file.load(options.model)
    module = onnx_file.rebuild(model)
    named = {name: module.get_parameter(name) for name in onnx_file.parameters(model)}
    state = {name: module.get_buffer(name) for name in onnx_file.state_updates(model)}
    batches = [onnx_file.load_batch(path, model) for path in options.data]
    for path, batch in zip(options.data, batches):
        size = len(next(iter(batch.values())))
        if size % options.microbatches:
            parser.error(f"{path} has {size} samples, which --microbatches {options.microbatches} does not divide")
    update = None
    if options.optimizer:
        try:
            update = optimizer(options.optimizer, named.values())
        except (TypeError, ValueError) as error:
            parser.error(f"--optimizer {options.optimizer}: {error}")

    losses = []
    for step in range(options.steps if update else 1):
        module.zero_grad()
        losses.append(backward(module, batches[step % len(batches)], options.microbatches))
        if step == 0 and options.gradients:
            np.savez(options.gradients, loss=np.float64(losses[0]),
                     **{name: parameter.grad.numpy() for name, parameter in named.items()})
        if update:
            update.step()
    if options.parameters:
        np.savez(options.parameters, losses=np.array(losses),
                 **{name: tensor.detach().numpy() for name, tensor in (named | state).items()})
    print("losses:", *(f"{value:.17g}" for value in losses))


if __name__ == "__main__":
    main()
