"""The models that pipeshard's exporter knows, one module each.

A model is a class with
  * `SIZES`: a dictionary from size name to the keyword arguments of the class,
  * optionally `CHOICES`, `FLAGS` and `RATES`: further keyword arguments, with the values that they may have, or what they say,
  * `export_config`: those keyword arguments, kept so that an exported file can say how to rebuild its module,
  * `forward(**inputs)`: one training step's forward pass, returning the scalar loss and nothing else,
  * `mean_over(**inputs)`: the number of terms that the loss is the mean of, which weighs the losses of microbatches,
  * `example_inputs(batch, rng)`: random inputs by name, in the order of `forward`,
  * optionally `batch_multiple`: batches are whole multiples of so many samples,
  * optionally `DIFFERENCE`: step and tolerance of verify.py's finite differences,
  * `reset(generator)`: deterministic initial parameters and running statistics.
"""

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from models.gpt2 import GPT2
from models.llama import Llama
from models.mlp import MLP
from models.moe import MoE
from models.resnet import ResNet

MODELS = {"mlp": MLP, "gpt2": GPT2, "llama": Llama, "moe": MoE, "resnet": ResNet}


def build(name: str, config: dict, seed: int = 0):
    """The float32 module `name` with parameters that depend on `config` and `seed` alone."""
    module = MODELS[name](**config)
    with torch.no_grad():
        module.reset(torch.Generator().manual_seed(seed))
    return in_training(module)


def build_without_weights(name: str, config: dict):
    """The module `name`, whose parameters are zeros that take no memory, however large it is."""
    with _EmptyOnMeta():
        module = MODELS[name](**config)
    zeros = {}
    for child in module.modules():
        for key, parameter in child.named_parameters(recurse=False):
            if parameter not in zeros:
                zeros[parameter] = torch.nn.Parameter(torch.zeros((), dtype=parameter.dtype).expand(parameter.shape))
            setattr(child, key, zeros[parameter])
    return in_training(module)


class _EmptyOnMeta(TorchFunctionMode):
    """Tensors whose values are yet to come, as large parameters are made, get no memory; constants do."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.empty:
            kwargs["device"] = "meta"
        return function(*args, **kwargs)


def in_training(module):
    """Batch normalisation uses the batch's statistics, and what was asked to drop drops, as in training; all else is
    deterministic, as in evaluation."""
    module.eval()
    for child in module.modules():
        if isinstance(child, _BatchNorm) or (isinstance(child, torch.nn.Dropout) and child.p > 0):
            child.train()
    return module
