"""GPT-2 as Hugging Face transformers implements it, with its own causal language-model loss."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from models.causal_lm import CausalLM


class GPT2(CausalLM, GPT2LMHeadModel):
    """input_ids[batch, seq], labels[batch, seq] -> loss; labels of -100 are ignored.

    Inherits rather than wraps, so that parameters keep the names of a Hugging Face checkpoint. The output projection is
    tied to the token embedding, but in the sizes from 125M to 39B, which are those of Alpa's benchmark. There is no
    dropout unless --dropout says how much, and no key-value cache.
    """

    SIZES = {
        "small": {"vocab": 256, "positions": 64, "seq": 16, "embd": 64, "layers": 4, "heads": 4, "init_std": 0.08},
        "full": {"vocab": 50257, "positions": 1024, "seq": 1024, "embd": 768, "layers": 12, "heads": 12,
                 "init_std": 0.02},
        **{name: {"vocab": 51200, "positions": 1024, "seq": 1024, "embd": embd, "layers": layers, "heads": heads,
                  "init_std": 0.02, "tied": False}
           for name, embd, layers, heads in (
               ("125M", 768, 12, 12), ("350M", 1024, 24, 16), ("760M", 1536, 24, 16), ("1.3B", 2048, 24, 32),
               ("2.6B", 2560, 32, 32), ("6.7B", 4096, 32, 32), ("15B", 5120, 48, 40), ("39B", 8192, 48, 64))},
    }

    CHOICES = {"attention": ("eager", "sdpa")}
    FLAGS = {"tied": "the output projection is the token embedding"}
    RATES = {"dropout": "how much is dropped behind embeddings, attention weights and blocks"}

    def __init__(self, vocab: int, positions: int, seq: int, embd: int, layers: int, heads: int, init_std: float,
                 attention: str = "eager", tied: bool = True, inner: int | None = None, dropout: float = 0.0):
        if seq > positions:
            raise ValueError(f"a sequence of {seq} needs as many positions, not {positions}")
        super().__init__(GPT2Config(
            vocab_size=vocab, n_positions=positions, n_embd=embd, n_layer=layers, n_head=heads, n_inner=inner,
            initializer_range=init_std, layer_norm_epsilon=1e-5,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
            bos_token_id=0, eos_token_id=0, use_cache=False, tie_word_embeddings=tied,
            attn_implementation=attention))
        self.loss_type = "ForCausalLM"  # transformers would guess it from the name of the class
        self.export_config = {
            "vocab": vocab, "positions": positions, "seq": seq, "embd": embd, "layers": layers, "heads": heads,
            "init_std": init_std, "attention": attention, "tied": tied}

    def reset(self, generator: torch.Generator) -> None:
        """GPT-2's initialisation, moved a little.

        A fresh GPT-2 has zero biases and unit scales, which would hide a bias added in the wrong place, and make all
        of them equal to each other. As after some training, every parameter gets a value of its own.
        """
        std = self.config.initializer_range
        for name, parameter in self.named_parameters():
            parameter.normal_(0.0, std, generator=generator)
            if name.endswith("c_proj.weight"):
                parameter.div_((2 * self.config.n_layer) ** 0.5)
            elif ".ln_" in name and name.endswith("weight"):
                parameter.add_(1.0)
