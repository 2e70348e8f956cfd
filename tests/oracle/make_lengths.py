#!/usr/bin/env python3
"""Writes tests/golden/lengths/: two small models whose sequences may have any length, examples of several lengths for each, and
PyTorch's losses of training on them. Needs tools/export/requirements.txt and transformers.

    tests/oracle/make_lengths.py

`causal` is a GPT-2, which sees no position behind it; `masked` a BERT, which is told by an attention mask. PyTorch computes every
example by itself, without padding, in float64; a step's loss is the mean over its labels that count. Which examples make a step is
worked out here anew, from what docs/data.md says.
"""
import json
import pathlib
import random
import warnings

import onnx
import torch
import transformers

from make_traps import without_sources

warnings.filterwarnings("ignore")
OUTPUT = pathlib.Path(__file__).resolve().parents[1] / "golden" / "lengths"
WORDS, LENGTHS, BATCH, EXAMPLES, EPOCHS, RATE = 24, (4, 8, 16), 4, 26, 2, 0.1
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": WORDS}
WITHOUT_DROPOUT = {"attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}


class Causal(torch.nn.Module):
    def __init__(self):
        super().__init__()
        config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=WORDS, n_positions=LENGTHS[-1], use_cache=False,
                                         attn_implementation="eager", **WITHOUT_DROPOUT)
        self.model = transformers.GPT2LMHeadModel(config)

    def forward(self, input_ids, labels):
        return self.model(input_ids=input_ids, labels=labels).loss


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        config = transformers.BertConfig(intermediate_size=16, max_position_embeddings=LENGTHS[-1], attn_implementation="eager",
                                         hidden_dropout_prob=0, attention_probs_dropout_prob=0, **SIZES)
        self.model = transformers.BertForMaskedLM(config)

    def forward(self, input_ids, attention_mask, labels):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, labels=labels).loss


def examples(masked):
    made = []
    for _ in range(EXAMPLES):
        words = [random.randrange(WORDS) for _ in range(random.randint(2, random.choice(LENGTHS)))]
        example = {"input_ids": words, "labels": words}
        if masked:
            example["attention_mask"] = [1] * len(words)
            example["labels"] = [word if random.random() < 0.5 else -100 for word in words]
            example["labels"][0] = words[0]
        made.append(example)
    return made


def steps(made):
    """The examples of every step of an epoch, by their numbers."""
    waiting, done = {length: [] for length in LENGTHS}, []

    def put(number, length):
        waiting[length].append(number)
        if len(waiting[length]) == BATCH:
            done.append(waiting.pop(length))
            waiting[length] = []

    for number, example in enumerate(made):
        put(number, min(length for length in LENGTHS if length >= len(example["labels"])))
    for length, longer in zip(LENGTHS, LENGTHS[1:]):
        for number in waiting.pop(length):
            put(number, longer)
    return done + ([waiting[LENGTHS[-1]]] if waiting[LENGTHS[-1]] else [])


def losses(module, made, causal):
    module = module.double()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    found = []
    for numbers in EPOCHS * steps(made):
        optimizer.zero_grad()
        total, count = 0, 0
        for example in (made[number] for number in numbers):
            logits = module.model(**{name: torch.tensor([row]) for name, row in example.items() if name != "labels"}).logits[0]
            labels = torch.tensor(example["labels"])
            if causal:
                logits, labels = logits[:-1], labels[1:]
            total = total + torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            count += (labels != -100).sum()
        (total / count).backward()
        optimizer.step()
        found.append((total / count).item())
    return found


def export(module, path, example):
    batch, time = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("time", min=2, max=LENGTHS[-1])
    inputs = {name: torch.tensor([row[:2] * 4] * 3) for name, row in example.items()}
    torch.onnx.export(module, kwargs=inputs, f=str(path), dynamo=True, external_data=False, verbose=False, output_names=["loss"],
                      input_names=list(inputs), dynamic_shapes={name: {0: batch, 1: time} for name in inputs})
    onnx.save(without_sources(onnx.load(path)), path)


def main():
    OUTPUT.mkdir(exist_ok=True)
    for name, kind in (("causal", Causal), ("masked", Masked)):
        torch.manual_seed(3)
        random.seed(3)
        module = kind()
        made = examples(kind is Masked)
        export(module, OUTPUT / f"{name}.onnx", max(made, key=lambda example: len(example["labels"])))
        (OUTPUT / f"{name}.jsonl").write_text("".join(json.dumps(example) + "\n" for example in made))
        (OUTPUT / f"{name}.json").write_text(json.dumps({"losses": losses(module, made, kind is Causal)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
