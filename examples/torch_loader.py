#!/usr/bin/env python3
"""Sends the batches of a torch DataLoader to pipeshard, through a pipe:

  pipeshard run mlp.plan --steps 100 --data-command 'python examples/torch_loader.py {step}'

{step} is how many steps are done already: a run that goes on from a checkpoint gets the rows behind them.
"""
import struct
import sys

import torch
from safetensors.torch import save
from torch.utils.data import DataLoader, TensorDataset

STEP = 8  # rows of a step, as the plan has them; a message may have any number
done = int(sys.argv[1]) * STEP  # rows that were used before

numbers = torch.Generator().manual_seed(0)
data = TensorDataset(torch.rand(4096, 32, generator=numbers), torch.rand(4096, 32, generator=numbers))

epoch, first = divmod(done, len(data))
while True:
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch)).tolist()
    for x, y in DataLoader(data, batch_size=STEP, sampler=order[first:]):
        message = save({"x": x, "y": y})
        sys.stdout.buffer.write(struct.pack("<Q", len(message)) + message)
    sys.stdout.buffer.flush()
    epoch, first = epoch + 1, 0
