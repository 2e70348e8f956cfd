#!/usr/bin/env python3
"""Functions and layers of torch, one at a time between a layer and a loss: default exports, trained by pipeshard,
compared with PyTorch as real_models.py does it (4 stages, 4 microbatches, all gradients in float32 and float64).

    torch_functions.py PIPESHARD [--only REGEX] [--work DIR]

A sweep of 279 modules (ten minutes on two cores), three of which are activations, limits and roots at their corners
and ends, by both exporters. Not in it is what PyTorch 2.15 does not export (kthvalue, cumprod,
lgamma, ...), what it exports with constants in float32 only (so that 1e-8 cannot hold: Hardswish, SELU, sinc, norms of
order 3), or wrongly (an LSTM with proj_size, the divisor_override of an average pooling: pipeshard says so), and what
pipeshard refuses: max_unpool over several microbatches. Ends with 1 if any does not pass.
"""
import argparse
import re
import sys
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import real_models
from real_modules import integers, numbers


class Between(nn.Module):
    """A layer, the function (of what `extra` makes and) of its result, and a loss that weighs the examples."""

    def __init__(self, layer, function, extra=None):
        super().__init__()
        self.layer, self.function = layer(), function
        self.extra = extra() if extra else None
        self.scale = nn.Parameter(torch.tensor([1.3, 0.7, 0.2]))

    def forward(self, x):
        h = self.layer(x)
        y = self.function(h) if self.extra is None else self.function(self.extra, h)
        if isinstance(y, (tuple, list)):
            y = sum((part.float() * (i + 1)).flatten(1).mean(1) for i, part in enumerate(y))
        y = y.flatten(1).mean(1) if y.dim() > 1 else y
        return ((y * self.scale[0] - self.scale[1]) ** 2 + self.scale[2] * y).mean()


def corners(prelu, h):
    """Each with a weight of its own, so that no error hides another. Not two clamps of one value with two limits each:
    the exporter's optimizer writes an invalid file of these."""
    results = (prelu(h), h.clamp(-1, 1), h.clamp(min=0), h.clamp(max=2), torch.clamp_min(h, 1), torch.clamp_max(h, 3),
               (-h).clamp(-2, 6), F.relu6(h), F.hardtanh(h), F.hardtanh(h, -2, 3), F.hardswish(h), F.hardsigmoid(h),
               F.relu(h), F.leaky_relu(h, 0.2), F.elu(h), F.selu(h), F.softshrink(h, 1), F.hardshrink(h, 1), h.abs(),
               torch.maximum(h, torch.tensor([2.])), torch.minimum(h, -h))
    return sum(result * (0.5 + k) for k, result in enumerate(results))


def corners_of_tensors(prelu, h):
    """Limits that are tensors, which the TorchScript exporter writes as numbers."""
    return corners(prelu, h) + 30 * torch.clamp(h, min=torch.tensor([2.])) + 40 * torch.clamp_max(h, torch.tensor([1.]))


class Corners(nn.Module):
    """Functions of whole numbers, among which are their corners and ends."""

    float64_bound = 1e-6  # Selu and HardSigmoid have attributes of float32

    def __init__(self, function):
        super().__init__()
        self.function, self.prelu, self.shift = function, nn.PReLU(8), nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.function(self.prelu, (x * 3).round() + self.shift).square().mean()


def roots(prelu, h):
    """At 0 (relu), where a root's slope is infinite: calls that the TorchScript exporter writes as roots of sums. The
    default exporter writes no cdist of a dynamic batch."""
    y = F.relu(prelu(h))
    pairs = y.view(-1, 4, 2)
    apart = torch.cdist(pairs, pairs, compute_mode="donot_use_mm_for_euclid_dist")
    return (pairs.std(2).mean(1) + 2 * torch.exp(-apart).mean((1, 2))).unsqueeze(1) * h


class Loss(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(8, 12), function

    def forward(self, x, target):
        return self.function(self.layer(x), target)


class Roots(Corners):
    float64_bound = 1e-5  # the exporter writes cdist's root as the power 1 / (2 + 1e-6)


def call(module, h):
    return module(h)


def in_place(h):
    y = h.clone()
    y[:, 1] = h[:, 0] * 2
    y[:, :, 3:5] += 1.5
    y[:, 2].mul_(3)
    return y ** 2


def with_teacher(module, h):
    with torch.no_grad():
        target = torch.relu(module(h)) * h.sum(-1, keepdim=True)
    return (module(h.flip(1)) - target) * target


@torch.no_grad()
def statistics(h):
    return h.mean(1, keepdim=True), h.std(1, keepdim=True)


def normalised(h):
    mean, deviation = statistics(h)
    return ((h - mean) / deviation) ** 3


def under_autocast(module, h):
    with torch.autocast("cpu", enabled=False):
        return torch.tanh(module(h)) * h


def weights(h):
    return torch.arange(1., 13).to(h)


TARGETS, LABELS = numbers(6, 12), integers(6, below=12)
POOLS = [
    ("AvgPool2d", dict(kernel_size=3, stride=2, padding=1)),
    ("AvgPool2d", dict(kernel_size=3, stride=2, ceil_mode=True)),
    ("AvgPool2d", dict(kernel_size=3, stride=2, padding=1, count_include_pad=False)),
    ("MaxPool2d", dict(kernel_size=3, stride=2, ceil_mode=True)),
    ("MaxPool2d", dict(kernel_size=2, dilation=2)),
    ("LPPool2d", dict(norm_type=2, kernel_size=2)),
    ("AdaptiveAvgPool2d", dict(output_size=(2, 5))),
    ("AdaptiveAvgPool2d", dict(output_size=(3, 7))),
    ("AdaptiveMaxPool2d", dict(output_size=(4, 5))),
    ("ReflectionPad2d", dict(padding=2)),
    ("ReplicationPad2d", dict(padding=(1, 2, 3, 0))),
    ("CircularPad2d", dict(padding=1)),
    ("ConstantPad2d", dict(padding=-1, value=0.3)),
    ("ZeroPad2d", dict(padding=2)),
    ("PixelShuffle", dict(upscale_factor=2)),
    ("PixelUnshuffle", dict(downscale_factor=2)),
    ("ChannelShuffle", dict(groups=2)),
    ("Upsample", dict(scale_factor=2, mode="bicubic")),
    ("Upsample", dict(scale_factor=1.5, mode="bilinear", align_corners=True)),
    ("Upsample", dict(size=(5, 7), mode="nearest")),
    ("Upsample", dict(size=(4, 5), mode="area")),
    ("UpsamplingBilinear2d", dict(scale_factor=2)),
    ("Unfold", dict(kernel_size=3, stride=2)),
    ("Dropout2d", dict(p=0.3)),
]
CONVOLUTIONS = [dict(padding="same", dilation=2), dict(padding_mode="circular", padding=1),
                dict(padding_mode="reflect", padding=1), dict(padding_mode="replicate", padding=2),
                dict(groups=2, stride=2), dict(groups=4)]

FUNCTIONS = {
    "no_grad, teacher": (with_teacher, partial(nn.Linear, 12, 12)),
    "no_grad, statistics": (normalised,),
    "autocast": (under_autocast, partial(nn.Linear, 12, 12)),
    "Threshold": (call, lambda: nn.Threshold(0.1, 0.3)),
    "Softmin": (call, lambda: nn.Softmin(-1)),
    "Softmax2": (call, lambda: nn.Softmax(1)),
    "LogSoftmax": (call, lambda: nn.LogSoftmax(1)),
    "gelu tanh": (lambda h: F.gelu(h, approximate="tanh"),),
    "sort": (lambda h: h.sort(-1)[0] * torch.arange(12.),),
    "sort descending": (lambda h: h.sort(1, descending=True)[0] * torch.arange(6.)[:, None],),
    "topk": (lambda h: h.topk(3, -1)[0] * torch.tensor([1., 2, 3]),),
    "topk smallest": (lambda h: h.topk(2, 1, largest=False)[0],),
    "argsort gather": (lambda h: h.gather(-1, h.argsort(-1)) * torch.arange(12.),),
    "max pair": (lambda h: h.max(-1)[0],),
    "min pair": (lambda h: h.min(1)[0],),
    "cumsum": (lambda h: h.cumsum(1) ** 2,),
    "logcumsumexp": (lambda h: h.logcumsumexp(1),),
    "diff": (lambda h: h.diff(dim=1) ** 2,),
    "std": (lambda h: h.std(-1),),
    "var": (lambda h: h.var(1),),
    "var biased": (lambda h: h.var(1, unbiased=False),),
    "var_mean": (lambda h: torch.var_mean(h, -1),),
    "std_mean": (lambda h: torch.std_mean(h, -1),),
    "norm": (lambda h: h.norm(dim=-1),),
    "norm 1": (lambda h: h.norm(p=1, dim=-1),),
    "norm inf": (lambda h: torch.linalg.vector_norm(h, float("inf"), dim=-1),),
    "normalize": (lambda h: F.normalize(h, dim=-1) ** 3,),
    "cosine_similarity": (lambda h: F.cosine_similarity(h[:, :3], h[:, 3:], dim=-1),),
    "pairwise": (lambda h: F.pairwise_distance(h[:, 0], h[:, 1]),),
    "tril": (lambda h: h.tril(),),
    "triu": (lambda h: h.triu(1),),
    "diagonal": (lambda h: h.diagonal(dim1=1, dim2=2),),
    "diag_embed": (lambda h: torch.diag_embed(h) ** 2,),
    "roll": (lambda h: h.roll(2, 1) * h,),
    "flip": (lambda h: h.flip(-1) * torch.arange(12.),),
    "rot90": (lambda h: torch.rot90(h, 1, (1, 2)) * torch.arange(6.),),
    "masked_fill": (lambda h: h.masked_fill(h > 0.2, 0.5),),
    "where": (lambda h: torch.where(h > 0, h ** 2, h * 3),),
    "clamp": (lambda h: h.clamp(-0.3, 0.4),),
    "clamp tensor": (lambda h: torch.clamp(h, min=h.mean(-1, keepdim=True)),),
    "maximum": (lambda h: torch.maximum(h, h.flip(1)),),
    "minimum": (lambda h: torch.minimum(h, h.mean(1, keepdim=True)),),
    "index_select": (lambda h: h.index_select(1, torch.tensor([0, 2, 2, 5])),),
    "fancy": (lambda h: h[:, [0, 3, 3], 1:9:2],),
    "fancy 2": (lambda h: h[:, torch.tensor([0, 1]), torch.tensor([3, 4])],),
    "bool index sum": (lambda h: (h * (h > 0)).sum(-1),),
    "select neg": (lambda h: h[:, -1] * h[..., :-2].sum(1)[:, :1],),
    "slice assign": (lambda h: torch.cat([h[:, :2] * 2, h[:, 2:]], 1),),
    "in place": (in_place,),
    "scatter_add": (lambda h: torch.zeros_like(h).scatter_add(1, torch.arange(6)[None, :,
        None].remainder(3).expand(h.shape), h ** 2),),
    "scatter": (lambda h: h.scatter(1, torch.zeros(h.shape[0], 1, 12, dtype=torch.long), h[:, :1] * 2),),
    "scatter_reduce amax": (lambda h: torch.zeros_like(h).scatter_reduce(1, torch.arange(6)[None, :,
        None].remainder(3).expand(h.shape), h, "amax"),),
    "index_add": (lambda h: torch.zeros_like(h).index_add(1, torch.tensor([0, 0, 1, 2, 2, 5]), h) ** 2,),
    "index_copy": (lambda h: torch.zeros_like(h).index_copy(1, torch.tensor([1, 0, 3, 2, 5, 4]), h) ** 2 *
        torch.arange(6.)[:, None],),
    "repeat_interleave": (lambda h: h.repeat_interleave(2, 1) ** 2,),
    "repeat": (lambda h: h.repeat(1, 2, 1) * torch.arange(12.),),
    "tile": (lambda h: torch.tile(h, (1, 1, 2)),),
    "unbind": (lambda h: torch.stack([t * i for i, t in enumerate(h.unbind(1))], -1),),
    "chunk": (lambda h: (lambda a, b, c: a * b + c)(*h.chunk(3, -1)),),
    "split sizes": (lambda h: (lambda a, b, c: a.mean(-1) * b.mean(-1) + c.sum(-1))(*h.split([2, 4, 6], -1)),),
    "tensor_split": (lambda h: torch.tensor_split(h, 5, -1)[1] * 2,),
    "einsum": (lambda h: torch.einsum("bij,bkj->bik", h, h),),
    "einsum outer": (lambda h: torch.einsum("bij,bkl->bijkl", h[:, :2, :2], h[:, 2:4, :3]),),
    "outer": (lambda h: h.unsqueeze(-1) * h.unsqueeze(-2),),
    "matmul bcast": (lambda h: h @ h.transpose(1, 2),),
    "bmm": (lambda h: torch.bmm(h, h.mT),),
    "baddbmm": (lambda h: torch.baddbmm(h[:, :, :6], h, h.mT, beta=0.5, alpha=2),),
    "lerp": (lambda h: torch.lerp(h, h.flip(1), 0.3),),
    "addcmul": (lambda h: torch.addcmul(h, h, h.flip(1), value=0.5),),
    "addcdiv": (lambda h: torch.addcdiv(h, h, h ** 2 + 1, value=0.5),),
    "atan2": (lambda h: torch.atan2(h, h.flip(1) + 3),),
    "expm1": (lambda h: h.expm1(),),
    "log1p": (lambda h: (h ** 2).log1p(),),
    "frac": (lambda h: h.frac(),),
    "remainder": (lambda h: torch.remainder(h, 0.7),),
    "fmod": (lambda h: torch.fmod(h, 0.7),),
    "trunc+h": (lambda h: h - h.trunc(),),
    "round+h": (lambda h: h * h.round(),),
    "sign": (lambda h: h * h.sign(),),
    "erf": (lambda h: h.erf(),),
    "erfc": (lambda h: h.erfc(),),
    "logit": (lambda h: h.sigmoid().logit(),),
    "logaddexp": (lambda h: torch.logaddexp(h, h.flip(1)),),
    "xlogy": (lambda h: torch.xlogy(h ** 2 + 1, h ** 2 + 2),),
    "rsqrt": (lambda h: (h ** 2 + 1).rsqrt(),),
    "pow tensor": (lambda h: (h ** 2 + 1) ** h.flip(1),),
    "2**x": (lambda h: 2 ** h,),
    "exp2": (lambda h: h.exp2(),),
    "log2": (lambda h: (h ** 2 + 1).log2(),),
    "log10": (lambda h: (h ** 2 + 1).log10(),),
    "sinh": (lambda h: h.sinh(),),
    "acosh": (lambda h: (h ** 2 + 1.5).acosh(),),
    "asin": (lambda h: (h.tanh() * 0.9).asin(),),
    "square abs": (lambda h: h.abs().square(),),
    "nan_to_num": (lambda h: torch.nan_to_num(h) ** 2,),
    "amax": (lambda h: h.amax(-1),),
    "amin two": (lambda h: h.amin((1, 2)),),
    "prod": (lambda h: (h * 0.3 + 1).prod(-1),),
    "logsumexp": (lambda h: h.logsumexp((1, 2)),),
    "all mean": (lambda h: h.mean((1, 2)),),
    "nanmean": (lambda h: h.nanmean(-1),),
    "aminmax": (lambda h: torch.aminmax(h, dim=-1),),
    "quantile": (lambda h: torch.quantile(h, 0.3, dim=-1),),
    "one_hot": (lambda h: F.one_hot(h.argmax(-1), 12) * h,),
    "embedding of argmax": (lambda m, h: m(h.argmax(-1)) * h.sum(-1, keepdim=True), lambda: nn.Embedding(12, 5)),
    "bucketize": (lambda m, h: m(torch.bucketize(h, torch.tensor([-0.5, 0., 0.5]))), lambda: nn.Embedding(4, 3)),
    "view_as": (lambda h: h.view_as(h.clone()).reshape(h.shape[0], 3, -1),),
    "unfold": (lambda h: h.unfold(1, 3, 2) ** 2,),
    "movedim": (lambda h: h.movedim(1, 2).contiguous().view(h.shape[0], -1) * torch.arange(72.),),
    "unflatten": (lambda h: h.unflatten(-1, (3, 4)).sum(2) ** 2,),
    "squeeze": (lambda h: h[:, :1].squeeze(1) ** 2,),
    "expand_as": (lambda h: h[:, :1].expand_as(h) * h,),
    "meshgrid": (lambda h: torch.meshgrid(torch.arange(6.), torch.arange(12.), indexing="ij")[0] * h,),
    "as_strided": (lambda h: h.contiguous().as_strided((h.shape[0], 3), (72, 2)) ** 2,),
    "LayerNorm no affine": (call, lambda: nn.LayerNorm(12, elementwise_affine=False)),
    "LayerNorm 2": (call, lambda: nn.LayerNorm((6, 12))),
    "RMSNorm": (call, lambda: nn.RMSNorm(12)),
    "LayerNorm no bias": (call, lambda: nn.LayerNorm(12, bias=False)),
    "Bilinear": (lambda m, h: m(h, h.flip(1)), lambda: nn.Bilinear(12, 12, 3)),
    "spectral_norm": (call, lambda: parametrizations.spectral_norm(nn.Linear(12, 5))),
    "weight_norm old": (call, lambda: nn.utils.weight_norm(nn.Linear(12, 5))),
    "RNN relu": (lambda m, h: m(h)[0], lambda: nn.RNN(12, 5, batch_first=True, nonlinearity="relu")),
    "MHA": (lambda m, h: m(h, h, h, need_weights=False)[0], lambda: nn.MultiheadAttention(12, 3, batch_first=True)),
    "MHA weights": (lambda m, h: m(h, h, h)[1] ** 2, lambda: nn.MultiheadAttention(12, 3, batch_first=True)),
    "MHA kdim": (lambda m, h: m(h, h[..., :7], h[..., :5])[0], lambda: nn.MultiheadAttention(12, 3, batch_first=True,
        kdim=7, vdim=5)),
    "MHA bias_kv": (lambda m, h: m(h, h, h)[0], lambda: nn.MultiheadAttention(12, 3, batch_first=True,
        add_bias_kv=True, add_zero_attn=True)),
    "MHA seq first": (lambda m, h: m(h.transpose(0, 1), h.transpose(0, 1), h.transpose(0, 1))[0].transpose(0, 1),
        lambda: nn.MultiheadAttention(12, 3)),
    "MHA padding": (lambda m, h: m(h, h, h, key_padding_mask=h.sum(-1) > 3)[0], lambda: nn.MultiheadAttention(12, 3,
        batch_first=True)),
    "sdpa gqa": (lambda h: F.scaled_dot_product_attention(h.reshape(-1, 6, 4, 3).transpose(1, 2), h.reshape(-1, 6, 4,
        3)[:, :, :2].transpose(1, 2), h.reshape(-1, 6, 4, 3)[:, :, :2].transpose(1, 2), enable_gqa=True,
        is_causal=True),),
    "TransformerDecoderLayer": (lambda m, h: m(h, h.flip(1)), lambda: nn.TransformerDecoderLayer(12, 2, 16,
        batch_first=True, norm_first=True, activation="gelu", dropout=0.0)),
    "EncoderLayer": (call, lambda: nn.TransformerEncoderLayer(12, 2, 16, batch_first=True, dropout=0.0)),
    "fft": (lambda h: torch.fft.fft(h).real ** 2,),
    "rfft abs": (lambda h: torch.fft.rfft(h, dim=1).abs(),),
    "fft2 inverse": (lambda h: torch.fft.ifft2(torch.fft.fft2(h) * 2).real ** 2,),
    "stft": (lambda h: torch.stft(h.flatten(1), 16, 8, window=torch.hann_window(16), return_complex=True).abs(),),
    "det": (lambda h: torch.linalg.det(h[:, :3, :3] + 3 * torch.eye(3)),),
    "detach": (lambda h: h * h.detach(),),
    "straight through": (lambda h: h + (h.round() - h).detach(),),
    "LSTM packed-free mask": (lambda m, h: m(h)[0] * (h.detach().sum(-1, keepdim=True) > 0), lambda: nn.LSTM(12, 5,
        batch_first=True)),
    "weight tying linear": (lambda m, h: F.linear(torch.tanh(F.linear(h, m.weight)), m.weight.t()),
        lambda: nn.Linear(12, 5, bias=False)),
    "LoRA": (lambda m, h: m[0](h) + m[2](m[1](h)) * 2, lambda: nn.ModuleList([nn.Linear(12, 7), nn.Linear(12, 2,
        bias=False), nn.Linear(2, 7, bias=False)])),
    "hypernetwork": (lambda m, h: torch.bmm(h, m(h.mean(1)).reshape(-1, 12, 4)), lambda: nn.Linear(12, 48)),
    "squeeze excite": (lambda m, h: h * torch.sigmoid(m[1](F.relu(m[0](h.mean(1))))).unsqueeze(1),
        lambda: nn.ModuleList([nn.Linear(12, 4), nn.Linear(4, 12)])),
    "cls token": (lambda m, h: torch.cat([m.weight.expand(h.shape[0], 1, 12), h], 1) ** 2, lambda: nn.Embedding(1,
        12)),
    "positions": (lambda m, h: h + m(torch.arange(h.shape[1])), lambda: nn.Embedding(6, 12)),
    "relative bias": (lambda m, h: (h @ h.mT + m(torch.arange(6)[:, None] - torch.arange(6)[None] + 5)[...,
        0]).softmax(-1) @ h, lambda: nn.Embedding(11, 1)),
    "euler ode": (lambda m, h: [h := h + 0.1 * torch.tanh(m(h)) for _ in range(4)][-1], lambda: nn.Linear(12, 12)),
    "capsule squash": (lambda h: (lambda n: h * n / (1 + n ** 2))(h.norm(dim=-1, keepdim=True)),),
    "linear attention": (lambda h: (lambda q: torch.cumsum(q[..., :, None] * h[..., None, :], 1).mul(q[...,
        None]).sum(-2) / (torch.cumsum(q, 1) * q).sum(-1, keepdim=True))(F.elu(h) + 1),),
    "rotary complex-free": (lambda h: torch.stack([-h[..., 1::2], h[..., ::2]], -1).flatten(-2) * h,),
    "alibi": (lambda h: ((h @ h.mT) - torch.arange(6.).to(h).view(1, 1, -1)).softmax(-1) @ h,),
    "gumbel-free st": (lambda h: (lambda s: (F.one_hot(s.argmax(-1), 12).to(s) - s.detach() + s) *
        torch.arange(12.).to(s))(h.softmax(-1)),),
    "batch norm 1d 3d": (lambda m, h: m(h.transpose(1, 2)), lambda: nn.BatchNorm1d(12)),
    "checkpointless seq": (lambda m, h: m(h), lambda: nn.Sequential(nn.Linear(12, 12), nn.LayerNorm(12),
        nn.Dropout(0.1), nn.GELU(), nn.Linear(12, 3))),
}
for _name in ("Hardtanh", "LogSigmoid", "Softshrink", "Hardshrink", "Tanhshrink", "GLU", "Softsign", "ReLU6", "Mish",
              "ELU", "SiLU", "GELU", "PReLU", "LeakyReLU", "Softplus", "Sigmoid", "Tanh"):
    FUNCTIONS[_name] = (call, getattr(nn, _name))
for _name in ("LSTM", "GRU", "RNN"):
    FUNCTIONS[f"{_name}, 2 layers"] = (lambda m, h: m(h)[0], partial(getattr(nn, _name), 12, 5, 2, batch_first=True))
    FUNCTIONS[f"{_name}, both ways, last state"] = (
        lambda m, h: (lambda state: state[0] if isinstance(state, tuple) else state)(m(h)[1]).transpose(0, 1) ** 2,
        partial(getattr(nn, _name), 12, 5, 1, batch_first=True, bidirectional=True, bias=False))

IMAGES = {
    "LRN": (call, lambda: nn.LocalResponseNorm(3)),
    "InstanceNorm2d": (call, lambda: nn.InstanceNorm2d(4)),
    "antialias": (lambda h: F.interpolate(h, size=(4, 5), mode="bilinear", antialias=True),),
    "fold": (lambda h: F.fold(F.unfold(h, 2, stride=2), (8, 10), 2, stride=2),),
    "affine_grid": (lambda h: F.grid_sample(h, F.affine_grid(h.flatten(1)[:, :6].reshape(-1, 2, 3), list(h.shape),
        align_corners=True), align_corners=True),),
    "ConvTranspose2d": (call, lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)),
    "segmentation CE": (lambda h: F.cross_entropy(h, h.detach().argmax(1), reduction="none").flatten(1),),
    "max_pool indices free": (lambda h: F.max_pool2d(h, 3, 2, 1),),
}
for _layer, _options in POOLS:
    IMAGES[f"{_layer} {_options}"] = (call, partial(getattr(nn, _layer), **_options))
for _options in CONVOLUTIONS:
    IMAGES[f"Conv2d {_options}"] = (call, partial(nn.Conv2d, 4, 4, 3, **_options))

SEQUENCES = {
    "GroupNorm": (call, lambda: nn.GroupNorm(2, 4)),
    "InstanceNorm1d affine": (call, lambda: nn.InstanceNorm1d(4, affine=True)),
    "BatchNorm1d": (call, lambda: nn.BatchNorm1d(4)),
    "ConvTranspose1d": (call, lambda: nn.ConvTranspose1d(4, 2, 4, stride=3, dilation=2)),
    "linear up": (call, lambda: nn.Upsample(scale_factor=2, mode="linear")),
    "MaxPool1d": (call, lambda: nn.MaxPool1d(3, 2, 1)),
    "AdaptiveAvgPool1d": (call, lambda: nn.AdaptiveAvgPool1d(3)),
}
for _options in CONVOLUTIONS:
    SEQUENCES[f"Conv1d {_options}"] = (call, partial(nn.Conv1d, 4, 4, 3, **_options))

VOLUMES = {
    "ConvTranspose3d": (call, lambda: nn.ConvTranspose3d(3, 2, 2, stride=2)),
    "MaxPool3d": (call, lambda: nn.MaxPool3d(2)),
    "AvgPool3d": (call, lambda: nn.AvgPool3d(2)),
    "trilinear": (call, lambda: nn.Upsample(scale_factor=2, mode="trilinear")),
    "BatchNorm3d": (call, lambda: nn.BatchNorm3d(3)),
    "InstanceNorm3d": (call, lambda: nn.InstanceNorm3d(3, affine=True)),
}

LOSSES = {
    "Huber": (lambda h, t: F.huber_loss(h, t, delta=0.3), TARGETS),
    "SmoothL1 beta": (lambda h, t: F.smooth_l1_loss(h, t, beta=0.5), TARGETS),
    "L1 sum/B": (lambda h, t: F.l1_loss(h, t), TARGETS),
    "KL": (lambda h, t: F.kl_div(h.log_softmax(-1), t.softmax(-1), reduction="batchmean"), TARGETS),
    "KL log_target mean": (lambda h, t: F.kl_div(h.log_softmax(-1), t.log_softmax(-1), log_target=True,
        reduction="mean"), TARGETS),
    "PoissonNLL": (lambda h, t: F.poisson_nll_loss(h, t.abs()), TARGETS),
    "SoftMargin": (lambda h, t: F.soft_margin_loss(h, t.sign()), TARGETS),
    "HingeEmbedding": (lambda h, t: F.hinge_embedding_loss(h, t.sign()), TARGETS),
    "BCE pos_weight": (lambda h, t: F.binary_cross_entropy_with_logits(h, t.sigmoid(), pos_weight=torch.arange(1.,
        13)), TARGETS),
    "BCE weight": (lambda h, t: F.binary_cross_entropy(h.sigmoid(), t.sigmoid(), weight=torch.arange(1., 13)), TARGETS),
    "MultiLabelSoftMargin": (lambda h, t: F.multilabel_soft_margin_loss(h.flatten(0, 1), (t > 0).float().flatten(0,
        1)), TARGETS),
    "Margin ranking": (lambda h, t: F.margin_ranking_loss(h, h.flip(1), t.sign(), margin=0.2), TARGETS),
    "CosineEmbedding": (lambda h, t: F.cosine_embedding_loss(h.flatten(0, 1), t.flatten(0, 1), t[...,
        0].flatten().sign(), margin=0.1), TARGETS),
    "Triplet": (lambda h, t: F.triplet_margin_loss(h, t, t.flip(1)), TARGETS),
    "CE ignore": (lambda h, t: F.cross_entropy(h.reshape(-1, 12), t.reshape(-1), ignore_index=3), LABELS),
    "CE smoothing probs": (lambda h, t: F.cross_entropy(h.reshape(-1, 12), F.one_hot(t.reshape(-1), 12).float() *
        0.9 + 0.1 / 12), LABELS),
    "NLL2d": (lambda h, t: F.nll_loss(h.log_softmax(-1).transpose(1, 2), t), LABELS),
    "CE sum over B": (lambda h, t: F.cross_entropy(h.reshape(-1, 12), t.reshape(-1), reduction="sum") / h.shape[0],
        LABELS),
    "CE none masked": (lambda h, t: (F.cross_entropy(h.reshape(-1, 12), t.reshape(-1), reduction="none") *
        (t.reshape(-1) != 2)).sum() / (t.reshape(-1) != 2).sum(), LABELS),
    "focal": (lambda h, t: (lambda ce: ((1 - (-ce).exp()) ** 2 * ce).mean())(F.cross_entropy(h.reshape(-1, 12),
        t.reshape(-1), reduction="none")), LABELS),
    "multi margin": (lambda h, t: F.multi_margin_loss(h.reshape(-1, 12), t.reshape(-1)), LABELS),
    "CE + L2 reg": (lambda h, t: F.cross_entropy(h.reshape(-1, 12), t.reshape(-1)) + 1e-2 * h.pow(2).mean(), LABELS),
    "quantile": (lambda h, t: torch.max(0.3 * (t - h), -0.7 * (t - h)).mean(), TARGETS),
    "rmse": (lambda h, t: (h - t).pow(2).mean((1, 2)).sqrt().mean(), TARGETS),
    "logcosh": (lambda h, t: torch.log(torch.cosh(h - t)).mean(), TARGETS),
    "Dqn": (lambda h, t: F.mse_loss(h.gather(-1, t[..., None]).squeeze(-1), t.float()), LABELS),
    "CE weight none": (lambda h, t: F.cross_entropy(h.transpose(1, 2), t, weight=weights(h),
        reduction="none").mean(1).sum() / h.shape[0], LABELS),
    "CE none 3d": (lambda h, t: F.cross_entropy(h.transpose(1, 2), t, reduction="none").mean(), LABELS),
    "NLL none": (lambda h, t: F.nll_loss(h.log_softmax(-1).reshape(-1, 12), t.reshape(-1), reduction="none").mean(),
        LABELS),
    "BCE none": (lambda h, t: F.binary_cross_entropy_with_logits(h, t.sigmoid(), reduction="none").mean(-1).mean(),
        TARGETS),
    "MSE none": (lambda h, t: (F.mse_loss(h, t, reduction="none") * t.abs()).mean(), TARGETS),
    "Huber none": (lambda h, t: F.huber_loss(h, t, reduction="none").sum(-1).mean(), TARGETS),
    "CE ohem topk": (lambda h, t: F.cross_entropy(h.transpose(1, 2), t, reduction="none").topk(3, 1)[0].mean(), LABELS),
    "distill": (lambda h, t: F.kl_div((h / 2).log_softmax(-1), (t / 2).softmax(-1),
        reduction="none").sum(-1).mean() * 4 + F.mse_loss(h, t), TARGETS),
    "soft CE 3d": (lambda h, t: F.cross_entropy(h.transpose(1, 2), t.softmax(-1).transpose(1, 2)), TARGETS),
    "soft CE none": (lambda h, t: F.cross_entropy(h.reshape(-1, 12), t.softmax(-1).reshape(-1, 12),
        reduction="none").mean(), TARGETS),
    "policy gradient": (lambda h, t: -(h.log_softmax(-1).gather(-1, t[..., None]).squeeze(-1) * (t.float() -
        5)).mean(), LABELS),
    "ppo clip": (lambda h, t: (lambda r: -torch.min(r * 0.7, r.clamp(0.8, 1.2) *
        0.7).mean())((h.log_softmax(-1).gather(-1, t[..., None]) + 2.4).exp()), LABELS),
    "label smooth manual": (lambda h, t: (lambda lp: 0.9 * F.nll_loss(lp, t.reshape(-1)) - 0.1 *
        lp.mean())(h.reshape(-1, 12).log_softmax(-1)), LABELS),
    "arcface": (lambda h, t: F.cross_entropy((F.normalize(h, dim=-1) - 0.3 * F.one_hot(t, 12)).reshape(-1, 12) * 8,
        t.reshape(-1)), LABELS),
    "accuracy beside": (lambda h, t: (lambda ce: (ce * torch.where(ce.detach() > 2.4, 1.0,
        0.5).to(ce)).mean())(F.cross_entropy(h.reshape(-1, 12), t.reshape(-1), reduction="none")), LABELS),
    "BCE multi pos none": (lambda h, t: (F.binary_cross_entropy_with_logits(h, t.sigmoid(), weight=weights(h),
        reduction="none")).sum() / h.shape[0], TARGETS),
}


def cases():
    """By name: how the module is made, and its inputs, as in real_modules.MODELS."""
    made = {}
    for table, layer, x in ((FUNCTIONS, lambda: nn.Linear(8, 12), numbers(6, 8)),
                            (IMAGES, lambda: nn.Conv2d(3, 4, 3, padding=1), numbers(3, 8, 10)),
                            (SEQUENCES, lambda: nn.Conv1d(6, 4, 3, padding=1), numbers(6, 8)),
                            (VOLUMES, lambda: nn.Conv3d(2, 3, 3, padding=1), numbers(2, 4, 6, 6))):
        for name, between in table.items():
            made[name if name not in made else f"{name}, again"] = (partial(Between, layer, *between), x)
    made["corners"] = (partial(Corners, corners_of_tensors), numbers(8))
    for name, (function, target) in LOSSES.items():
        made["loss: " + name] = (partial(Loss, function), numbers(6, 8), target)
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeshard")
    parser.add_argument("--only", default="")
    parser.add_argument("--work", default="/tmp/torch_functions")
    arguments = parser.parse_args()
    real_models.MORE.update(cases())
    script = {"corners, TorchScript": (partial(Corners, corners), numbers(8)),
              "corners of roots, TorchScript": (partial(Roots, roots), numbers(8))}
    real_models.TORCH_SCRIPT.update(script)
    failed = 0
    for name in [*cases(), *script]:
        if not re.search(arguments.only, name):
            continue
        try:
            result, _, note = real_models.trial(arguments.pipeshard, name, arguments.work, ["4 stages"], "float32",
                                                  fixed_batch=False)
        except Exception as error:  # one of them shall not end the others
            result, note = "FAIL", f"{type(error).__name__}: {error}"
        failed += result != "PASS"
        print(f"| {name} | {result} | {note[:300]} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
