"""What the language models have in common."""

import numpy as np
import torch

IGNORED_LABEL = -100


class CausalLM:
    """Mixed into a causal language model of Hugging Face transformers, whose own loss it is trained by."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        # Without a mask transformers looks for several sequences in one, by an operator that TorchScript's exporter
        # does not know. A mask that hides nothing says that there is one.
        mask = torch.ones_like(input_ids) if torch.jit.is_tracing() else None
        return super().forward(input_ids=input_ids, attention_mask=mask, labels=labels, use_cache=False).loss

    def mean_over(self, input_ids: torch.Tensor, labels: torch.Tensor) -> int:
        return int((labels[:, 1:] != IGNORED_LABEL).sum())

    def example_inputs(self, batch: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        shape = (batch, self.export_config["seq"])
        ids = rng.integers(0, self.export_config["vocab"], shape, dtype=np.int64)
        return {"input_ids": ids, "labels": ids.copy()}
