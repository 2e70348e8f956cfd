"""Llama as Hugging Face transformers implements it, with its own causal language-model loss."""

import numpy as np
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRMSNorm, repeat_kv

from models.causal_lm import CausalLM

EPSILON = float(np.float32(1e-5))


def causal_attention(module, query, key, value, attention_mask, scaling, **_):
    """Attention to the earlier positions, for queries in groups that share a key and a value.

    transformers builds its mask with vmap, which torch.export cannot trace with a dynamic batch, and rounds scores to
    float32. This has neither.
    """
    key, value = (repeat_kv(tensor, module.num_key_value_groups) for tensor in (key, value))
    length = query.shape[2]
    mask = torch.full((length, length), torch.finfo(torch.float32).min, dtype=query.dtype).triu(1)
    weights = torch.softmax(query @ key.transpose(2, 3) * scaling + mask, dim=-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


ALL_ATTENTION_FUNCTIONS.register("grouped_causal", causal_attention)


class RMSNorm(LlamaRMSNorm):
    """The same, without rounding float64 to float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


class RotaryTable(nn.Module):
    """The cosines and sines of the positions in use: constants, in float32 as transformers has them."""

    def __init__(self, seq: int, head: int, theta: float):
        super().__init__()
        frequency = 1.0 / theta ** (np.arange(0, head, 2) / head)
        angle = np.tile(np.arange(seq)[:, None] * frequency, 2)[None].astype(np.float64)
        self.register_buffer("cos", torch.from_numpy(np.cos(angle).astype(np.float32)), persistent=False)
        self.register_buffer("sin", torch.from_numpy(np.sin(angle).astype(np.float32)), persistent=False)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor):
        return self.cos, self.sin


class Llama(CausalLM, LlamaForCausalLM):
    """input_ids[batch, seq], labels[batch, seq] -> loss; labels of -100 are ignored.

    RMS normalisation, rotary position embedding, attention in which several queries share a key and a value (`heads`
    and `kv_heads`), SwiGLU, no biases. The output projection is a parameter of its own, or tied to the token embedding.
    The full size is TinyLlama's: 1.1 billion parameters.
    """

    SIZES = {
        "small": {"vocab": 256, "seq": 16, "hidden": 64, "inner": 128, "layers": 4, "heads": 4, "kv_heads": 2,
                  "theta": 10000.0, "init_std": 0.08},
        "full": {"vocab": 32000, "seq": 2048, "hidden": 2048, "inner": 5632, "layers": 22, "heads": 32, "kv_heads": 4,
                 "theta": 10000.0, "init_std": 0.02},
    }

    CHOICES = {"head": ("untied", "tied")}

    def __init__(self, vocab: int, seq: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int,
                 theta: float, init_std: float, head: str = "untied"):
        if hidden % heads or heads % kv_heads:
            raise ValueError(f"{hidden} features, {heads} heads and {kv_heads} key-value heads do not divide each other")
        super().__init__(LlamaConfig(
            vocab_size=vocab, max_position_embeddings=seq, hidden_size=hidden, intermediate_size=inner,
            num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, rope_theta=theta,
            initializer_range=init_std, rms_norm_eps=EPSILON, tie_word_embeddings=head == "tied", use_cache=False,
            bos_token_id=0, eos_token_id=0, attn_implementation="grouped_causal"))
        self.loss_type = "ForCausalLM"  # transformers would guess it from the name of the class
        self.model.rotary_emb = RotaryTable(seq, hidden // heads, theta)
        for module in self.modules():
            if isinstance(module, LlamaRMSNorm):
                module.__class__ = RMSNorm
        self.export_config = {
            "vocab": vocab, "seq": seq, "hidden": hidden, "inner": inner, "layers": layers, "heads": heads,
            "kv_heads": kv_heads, "theta": theta, "init_std": init_std, "head": head}

    def reset(self, generator: torch.Generator) -> None:
        """Llama's initialisation, with scales that differ from each other, as after some training."""
        for name, parameter in self.named_parameters():
            parameter.normal_(0.0, self.config.initializer_range, generator=generator)
            if name.endswith("norm.weight"):
                parameter.add_(1.0)
