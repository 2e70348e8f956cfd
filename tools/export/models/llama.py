"""Llama as Hugging Face transformers implements it, with its own causal language-model loss."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from models.causal_lm import CausalLM


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

    CHOICES = {"attention": ("sdpa", "eager"), "head": ("untied", "tied")}

    def __init__(self, vocab: int, seq: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int,
                 theta: float, init_std: float, attention: str = "sdpa", head: str = "untied"):
        if hidden % heads or heads % kv_heads:
            raise ValueError(f"{hidden} features, {heads} heads and {kv_heads} key-value heads do not divide each other")
        super().__init__(LlamaConfig(
            vocab_size=vocab, max_position_embeddings=seq, hidden_size=hidden, intermediate_size=inner,
            num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
            rope_parameters={"rope_type": "default", "rope_theta": theta}, initializer_range=init_std,
            rms_norm_eps=1e-5, tie_word_embeddings=head == "tied", use_cache=False, bos_token_id=0, eos_token_id=0,
            attn_implementation=attention))
        self.loss_type = "ForCausalLM"  # transformers would guess it from the name of the class
        self.export_config = {
            "vocab": vocab, "seq": seq, "hidden": hidden, "inner": inner, "layers": layers, "heads": heads,
            "kv_heads": kv_heads, "theta": theta, "init_std": init_std, "attention": attention, "head": head}

    def reset(self, generator: torch.Generator) -> None:
        """Llama's initialisation, with scales that differ from each other, as after some training."""
        for name, parameter in self.named_parameters():
            parameter.normal_(0.0, self.config.initializer_range, generator=generator)
            if name.endswith("norm.weight"):
                parameter.add_(1.0)
