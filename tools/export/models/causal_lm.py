"""What the language models have in common."""

import numpy as np
import torch
from torch import nn

IGNORED_LABEL = -100


def causal_loss(logits, labels, vocab_size, **_):
    """Mean cross entropy of each position's prediction of the next token; the last position predicts nothing."""
    next_tokens = nn.functional.pad(labels, (0, 1), value=IGNORED_LABEL)[:, 1:]
    return nn.functional.cross_entropy(
        logits.reshape(-1, vocab_size), next_tokens.reshape(-1), ignore_index=IGNORED_LABEL)


class CausalLM:
    """Mixed into a causal language model of Hugging Face transformers."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids=input_ids, labels=labels, use_cache=False).loss

    def double(self):
        """As in the base class; also keeps the loss in float64, where transformers rounds its logits to float32."""
        self.loss_function = causal_loss
        return super().double()

    def mean_over(self, input_ids: torch.Tensor, labels: torch.Tensor) -> int:
        return int((labels[:, 1:] != IGNORED_LABEL).sum())

    def example_inputs(self, batch: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        shape = (batch, self.export_config["seq"])
        ids = rng.integers(0, self.export_config["vocab"], shape, dtype=np.int64)
        return {"input_ids": ids, "labels": ids.copy()}
