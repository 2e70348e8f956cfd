"""Residual networks for images: ResNet, and the Wide-ResNets of Alpa's suite."""

import math

import numpy as np
import torch
from torch import nn

IGNORED_LABEL = -100

# A file stores both as float32 attributes, whatever the model's type: use those very numbers. The file holds
# 1 - MOMENTUM, which is what it calls momentum.
EPSILON = float(np.float32(1e-5))
MOMENTUM = 1.0 - float(np.float32(0.9))


def normalization(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=EPSILON, momentum=MOMENTUM)


class Bottleneck(nn.Module):
    """1x1 to `inner` channels, 3x3 to `inner * width`, 1x1 to `4 * inner`; the input, projected if need be, is added."""

    EXPANSION = 4

    def __init__(self, channels: int, inner: int, width: int, stride: int):
        super().__init__()
        outer = self.EXPANSION * inner
        self.conv1 = nn.Conv2d(channels, inner, 1, bias=False)
        self.bn1 = normalization(inner)
        self.conv2 = nn.Conv2d(inner, inner * width, 3, stride, padding=1, bias=False)
        self.bn2 = normalization(inner * width)
        self.conv3 = nn.Conv2d(inner * width, outer, 1, bias=False)
        self.bn3 = normalization(outer)
        self.shortcut = nn.Identity() if (channels, stride) == (outer, 1) else nn.Sequential(
            nn.Conv2d(channels, outer, 1, stride, bias=False), normalization(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """images[batch, 3, image, image], labels[batch] -> loss; labels of -100 are ignored.

    Convolutions, batch normalisation with the batch's own statistics, bottleneck residuals, max and average pooling, a
    linear head and cross entropy. `blocks` counts the residual blocks of each resolution. The sizes from 250M on are
    Alpa's Wide-ResNets: 3x3 convolutions with `width` times as many output channels.
    """

    # Finite differences: the step, short enough to cross next to none of the kinks of relu and max, and the tolerance.
    DIFFERENCE = 1e-7, 1e-6

    SIZES = {
        "small": {"image": 32, "classes": 10, "stem": 3, "blocks": "2,1,1", "channels": 16, "width": 1},
        "full": {"image": 224, "classes": 1000, "stem": 7, "blocks": "3,4,6,3", "channels": 64, "width": 1},
        **{name: {"image": 224, "classes": 1024, "stem": 7, "blocks": blocks, "channels": channels, "width": width}
           for name, blocks, channels, width in (
               ("250M", "3,4,6,3", 160, 2), ("500M", "3,4,6,3", 224, 2), ("1B", "3,4,6,3", 320, 2),
               ("2B", "3,4,6,3", 448, 2), ("4B", "3,4,6,3", 640, 2), ("6.8B", "3,4,6,3", 320, 16),
               ("13B", "3,4,23,3", 320, 16))},
    }

    def __init__(self, image: int, classes: int, stem: int, blocks: str, channels: int, width: int):
        super().__init__()
        self.export_config = {"image": image, "classes": classes, "stem": stem, "blocks": blocks,
                              "channels": channels, "width": width}
        if stem % 2 == 0:
            raise ValueError(f"the first convolution needs an odd size, not {stem}")
        # The first convolution of a large image halves it, as in the published ResNets.
        self.conv1 = nn.Conv2d(3, channels, stem, stride=1 if stem < 7 else 2, padding=stem // 2, bias=False)
        self.bn1 = normalization(channels)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        stages, incoming = [], channels
        for stage, count in enumerate(map(int, blocks.split(","))):
            inner = channels << stage
            for block in range(count):
                stages.append(Bottleneck(incoming, inner, width, stride=2 if stage > 0 and block == 0 else 1))
                incoming = Bottleneck.EXPANSION * inner
        self.blocks = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(incoming, classes)

    def reset(self, generator: torch.Generator) -> None:
        """He initialisation; scales, biases and running statistics each get a value of their own, as after training."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.normal_(0.0, math.sqrt(2.0 / module.weight[0].numel()), generator=generator)
            elif isinstance(module, nn.BatchNorm2d):
                module.weight.normal_(1.0, 0.1, generator=generator)
                module.bias.normal_(0.0, 0.1, generator=generator)
                module.running_mean.normal_(0.0, 0.1, generator=generator)
                module.running_var.uniform_(0.5, 1.5, generator=generator)
        self.fc.weight.normal_(0.0, 1.0 / math.sqrt(self.fc.in_features), generator=generator)
        self.fc.bias.normal_(0.0, 0.1, generator=generator)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(torch.relu(self.bn1(self.conv1(images))))
        x = self.avgpool(self.blocks(x)).flatten(1)
        return nn.functional.cross_entropy(self.fc(x), labels, ignore_index=IGNORED_LABEL)

    def mean_over(self, images: torch.Tensor, labels: torch.Tensor) -> int:
        return int((labels != IGNORED_LABEL).sum())

    def example_inputs(self, batch: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        image, classes = self.export_config["image"], self.export_config["classes"]
        return {"images": rng.standard_normal((batch, 3, image, image)).astype(np.float32),
                "labels": rng.integers(0, classes, batch, dtype=np.int64)}
