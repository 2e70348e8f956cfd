"""The models that pipeshard's exporter knows, one module each.

A model is a class with
  * `SIZES`: a dictionary from size name to the keyword arguments of the class,
  * `export_config`: those keyword arguments, kept so that an exported file can say how to rebuild its module,
  * `forward(**inputs)`: one training step's forward pass, returning the scalar loss and nothing else,
  * `example_inputs(batch, rng)`: random inputs by name, in the order of `forward`,
  * `reset(generator)`: deterministic initial parameters.
"""

from models.gpt2 import GPT2
from models.mlp import MLP

MODELS = {"mlp": MLP, "gpt2": GPT2}


def build(name: str, config: dict, seed: int = 0):
    """The float32 module `name` with parameters that depend on `config` and `seed` alone."""
    import torch

    module = MODELS[name](**config)
    with torch.no_grad():
        module.reset(torch.Generator().manual_seed(seed))
    return module.eval()
