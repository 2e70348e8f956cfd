"""GPT-2 with a mixture of experts in every second layer, as in GShard and in Alpa's suite."""

import torch
from torch import nn
from transformers.activations import NewGELUActivation

from models.gpt2 import GPT2

INNER = 8  # features inside a feed-forward layer, for each feature outside


class Experts(nn.Module):
    """Every token goes to the two of `experts` feed-forward networks that a softmax gate likes best.

    An expert takes at most 2 * group / experts tokens of each `group` of them, first all first choices in order, then
    the second ones; a choice beyond that counts for nothing. So all shapes are static: a mask of group by experts *
    capacity deals the tokens out and collects them again by matrix products, and the experts are one batched matrix
    product.
    """

    def __init__(self, earlier: torch.Tensor, features: int, experts: int):
        """`earlier` @ a mask of tokens counts those before each one; all layers share it."""
        super().__init__()
        self.group = len(earlier)
        self.experts, self.capacity = experts, max(1, 2 * self.group // experts)
        self.gate = nn.Parameter(torch.empty(features, experts))
        self.fc = nn.Parameter(torch.empty(experts, features, INNER * features))
        self.fc_bias = nn.Parameter(torch.empty(experts, 1, INNER * features))
        self.proj = nn.Parameter(torch.empty(experts, INNER * features, features))
        self.proj_bias = nn.Parameter(torch.empty(experts, 1, features))
        self.act = NewGELUActivation()
        self.register_buffer("earlier", earlier, persistent=False)
        self.register_buffer("numbers", torch.arange(experts), persistent=False)
        self.register_buffer("slots", torch.arange(self.capacity).float(), persistent=False)

    def deal(self, probabilities: torch.Tensor) -> torch.Tensor:
        """[groups, group, experts] -> weight of each token at each place, [groups, group, experts, capacity]."""
        chosen = probabilities.topk(2, dim=-1).indices
        taken, weights, masks = 0.0, 0.0, []
        for choice in range(2):
            mask = (chosen[:, :, choice:choice + 1] == self.numbers).to(probabilities.dtype)
            slot = self.earlier @ mask + taken
            taken = taken + mask.sum(1, keepdim=True)
            place = (slot.unsqueeze(-1) == self.slots).to(probabilities.dtype)
            masks.append(mask)
            weights = weights + (mask * probabilities).unsqueeze(-1) * place
        return weights / ((masks[0] + masks[1]) * probabilities).sum(-1, keepdim=True).unsqueeze(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, features = x.shape
        groups = batch
        if seq != self.group:
            x = x.reshape(-1, self.group, features)
            groups = x.shape[0]
        weights = self.deal(torch.softmax(x @ self.gate, dim=-1)).reshape(groups, self.group, -1)
        dispatch = (weights > 0).to(x.dtype)
        tokens = (dispatch.transpose(1, 2) @ x).reshape(groups, self.experts, self.capacity, features)
        tokens = tokens.transpose(0, 1).reshape(self.experts, -1, features)
        hidden = self.act(torch.bmm(tokens, self.fc) + self.fc_bias)
        tokens = (torch.bmm(hidden, self.proj) + self.proj_bias).reshape(self.experts, groups, self.capacity, features)
        out = weights @ tokens.transpose(0, 1).reshape(groups, -1, features)
        return out if seq == self.group else out.reshape(batch, seq, features)


class MoE(GPT2):
    """input_ids[batch, seq], labels[batch, seq] -> loss; labels of -100 are ignored.

    GPT-2 in which every second layer has experts, of which each token uses two. There is no loss for balance among the
    experts. Tokens are dealt out within `group` sequences: with one, samples do not depend on each other; with more, a
    batch is of whole groups. The sizes from 380M to 70B are Alpa's, whose groups are of two sequences.
    """

    SIZES = {
        "small": {"vocab": 256, "seq": 16, "embd": 32, "layers": 2, "heads": 4, "experts": 4, "group": 1,
                  "init_std": 0.08},
        "full": {"vocab": 32000, "seq": 1024, "embd": 768, "layers": 8, "heads": 16, "experts": 8, "group": 1,
                 "init_std": 0.02},
        **{name: {"vocab": 32000, "seq": 1024, "embd": embd, "layers": layers, "heads": 16, "experts": experts,
                  "group": 2, "init_std": 0.02, "tied": False}
           for name, embd, layers, experts in (
               ("380M", 768, 8, 8), ("690M", 768, 8, 16), ("1.3B", 768, 16, 16), ("2.4B", 1024, 16, 16),
               ("7.1B", 1280, 16, 32), ("10B", 1536, 16, 32), ("27B", 2048, 16, 48), ("70B", 2048, 32, 64))},
    }

    def __init__(self, vocab: int, seq: int, embd: int, layers: int, heads: int, experts: int, group: int,
                 init_std: float, attention: str = "eager", tied: bool = True):
        if experts < 2:
            raise ValueError(f"each token uses two experts; there are {experts}")
        if group < 1:
            raise ValueError(f"a group is of at least one sequence, not {group}")
        super().__init__(vocab, seq, seq, embd, layers, heads, init_std, attention, tied, INNER * embd)
        earlier = torch.ones(group * seq, group * seq).tril(-1)
        for block in self.transformer.h[1::2]:
            block.mlp = Experts(earlier, embd, experts)
        self.batch_multiple = group
        self.export_config = {"vocab": vocab, "seq": seq, "embd": embd, "layers": layers, "heads": heads,
                              "experts": experts, "group": group, "init_std": init_std, "attention": attention,
                              "tied": tied}

    def reset(self, generator: torch.Generator) -> None:
        super().reset(generator)
        for name, parameter in self.named_parameters():
            if name.endswith("gate"):
                parameter.mul_(4.0)  # clear choices
