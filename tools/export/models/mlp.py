"""Four dense layers with a squared error: the multilayer perceptron of Alpa's tutorial."""

import math

import numpy as np
import torch
from torch import nn


class MLP(nn.Module):
    """x[batch, dim] -> dense 4*dim -> dense dim -> dense 4*dim -> dense dim, each followed by relu.

    The loss is the mean squared error against y[batch, dim].
    """

    SIZES = {"small": {"dim": 32}, "full": {"dim": 2048}}

    def __init__(self, dim: int):
        super().__init__()
        self.export_config = {"dim": dim}
        self.dense1 = nn.Linear(dim, 4 * dim)
        self.dense2 = nn.Linear(4 * dim, dim)
        self.dense3 = nn.Linear(dim, 4 * dim)
        self.dense4 = nn.Linear(4 * dim, dim)

    def reset(self, generator: torch.Generator) -> None:
        """He initialisation with slightly positive biases: variance is kept and few units start dead."""
        for layer in (self.dense1, self.dense2, self.dense3, self.dense4):
            layer.weight.normal_(0.0, math.sqrt(2.0 / layer.in_features), generator=generator)
            layer.bias.uniform_(0.0, 0.2, generator=generator)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.dense1(x))
        hidden = torch.relu(self.dense2(hidden))
        hidden = torch.relu(self.dense3(hidden))
        prediction = torch.relu(self.dense4(hidden))
        return nn.functional.mse_loss(prediction, y)

    def mean_over(self, x: torch.Tensor, y: torch.Tensor) -> int:
        return y.numel()

    def example_inputs(self, batch: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        shape = (batch, self.export_config["dim"])
        return {
            "x": rng.standard_normal(shape).astype(np.float32),
            "y": np.abs(rng.standard_normal(shape)).astype(np.float32),
        }
