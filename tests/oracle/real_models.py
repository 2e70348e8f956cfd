#!/usr/bin/env python3
"""Unmodified modules, exported by default calls, trained by pipeshard, compared with PyTorch.

    real_models.py PIPESHARD [--only REGEX] [--work DIR] [--table FILE]

Each architecture is built from its library as people build it (a small configuration, random weights), exported
by torch.onnx.export without options, and validated with 4 stages and 4 microbatches. Where pipeshard refuses the
file because the exporter's optimizer has lost parameters, it is exported again by the line that the message
prints. Then it says

    PASS     every tensor equals one device; pipeshard trains as many elements as the module has; the gradients
             of all named parameters equal PyTorch's in float64 (relative to the largest of each tensor)
    refused  exit code 65 and the reason
    FAIL     anything else

Needs torch, torchvision, transformers, onnx, numpy, safetensors. Ends with 1 if anything says FAIL.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import warnings

import numpy as np
import safetensors.numpy
import torch

warnings.filterwarnings("ignore")

ROWS = 8
TOKENS = 16
WORDS = 256
LOST = "the exporter's optimizer has changed parameters"


class Classifier(torch.nn.Module):
    """A module and its loss: cross-entropy of its logits."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x, labels):
        out = self.module(x)
        logits = getattr(out, "logits", out)
        return torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


class LanguageModel(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x, labels):
        return self.module(input_ids=x, labels=labels, use_cache=False).loss


class Recurrent(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.table = torch.nn.Embedding(WORDS, 32)
        self.cells = kind(32, 48, batch_first=True)
        self.head = torch.nn.Linear(48, WORDS)

    def forward(self, x):
        return self.head(self.cells(self.table(x))[0])


class Perceptron(torch.nn.Module):
    """Linear on three axes: the exporter's optimizer transposes its weights."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(24, 48), torch.nn.GELU(), torch.nn.LayerNorm(48),
                                          torch.nn.Linear(48, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))

    def forward(self, x):
        return self.layers(x)


def words(generator):
    return torch.randint(0, WORDS, (ROWS, TOKENS), generator=generator)


def images(size):
    return lambda generator: torch.randn(ROWS, 3, size, size, generator=generator)


def labels(*shape, classes=10):
    return lambda generator: torch.randint(0, classes, (ROWS, *shape), generator=generator)


def causal(name, **options):
    """A decoder of transformers: two small layers."""

    def build():
        import transformers
        config = getattr(transformers, name + "Config")(
            vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, **options)
        return LanguageModel(getattr(transformers, name + "ForCausalLM")(config))

    return build, words, labels(TOKENS, classes=WORDS)


def gpt2():
    import transformers
    config = transformers.GPT2Config(vocab_size=WORDS, n_positions=64, n_embd=64, n_layer=2, n_head=4)
    return LanguageModel(transformers.GPT2LMHeadModel(config))


def encoder(name, **options):
    def build():
        import transformers
        config = getattr(transformers, name + "Config")(num_labels=10, **options)
        return Classifier(getattr(transformers, name + "ForSequenceClassification")(config))

    return build, words, labels()


def vision(name, **options):
    def build():
        import transformers
        config = getattr(transformers, name + "Config")(num_labels=10, **options)
        return Classifier(getattr(transformers, name + "ForImageClassification")(config))

    return build, images(32), labels()


def torchvision_model(name, size=64):
    def build():
        import torchvision
        return Classifier(getattr(torchvision.models, name)(num_classes=10))

    return build, images(size), labels()


SMALL = dict(vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=64)
VIT = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=32,
           patch_size=8)
MODELS = {
    "Linear, 3 axes": (lambda: Classifier(Perceptron()), lambda g: torch.randn(ROWS, 6, 24, generator=g), labels(6)),
    "GPT-2": (gpt2, words, labels(TOKENS, classes=WORDS)),
    "Llama": causal("Llama"),
    "Mistral": causal("Mistral"),
    "Qwen2": causal("Qwen2"),
    "GPT-NeoX": causal("GPTNeoX"),
    "Gemma": causal("Gemma", head_dim=16),
    "Phi": causal("Phi"),
    "BERT": encoder("Bert", **SMALL),
    "RoBERTa": encoder("Roberta", **SMALL),
    "DistilBERT": encoder("DistilBert", vocab_size=WORDS, dim=64, hidden_dim=128, n_layers=2, n_heads=4,
                          max_position_embeddings=64),
    "ViT": vision("ViT", **VIT),
    "DeiT": vision("DeiT", **VIT),
    "ConvNeXt": vision("ConvNext", hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 2, 1], image_size=32),
    "ResNet-18": torchvision_model("resnet18"),
    "MobileNetV3": torchvision_model("mobilenet_v3_small"),
    "EfficientNet": torchvision_model("efficientnet_b0"),
    "DenseNet": torchvision_model("densenet121"),
    "Swin": torchvision_model("swin_t"),
    "LSTM": (lambda: Classifier(Recurrent(torch.nn.LSTM)), words, labels(TOKENS, classes=WORDS)),
    "GRU": (lambda: Classifier(Recurrent(torch.nn.GRU)), words, labels(TOKENS, classes=WORDS)),
}


def export(module, inputs, path, **options):
    axes = tuple({0: "batch"} for _ in inputs)
    torch.onnx.export(module, inputs, path, dynamic_shapes=axes, verbose=False, **options)


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    return done.returncode, done.stdout, done.stderr


def gradient_error(pipeshard, path, folder, module, inputs):
    """The largest difference of a parameter's gradient from PyTorch's, relative to the tensor's largest."""
    import onnx
    names = [value.name for value in onnx.load(path, load_external_data=False).graph.input]
    data, plan, dump = (os.path.join(folder, name) for name in ("data.npz", "gradients.plan", "dump"))
    np.savez(data, **{name: value.numpy() for name, value in zip(names, inputs)})
    for old in (plan, dump):
        shutil.rmtree(old, ignore_errors=True)
    for command in (["plan", path, "--dim", f"batch={ROWS}", "--cluster", "1x2", "--stages", "uniform:2",
                     "--microbatches", "2", "--precision", "float64", "--optimizer", "sgd:lr=1", "-o", plan],
                    ["run", plan, "--data", data, "--steps", "1", "--dump", dump]):
        code, _, errors = run([pipeshard, *command])
        if code != 0:
            return None, errors.strip().splitlines()[-1]
    updated = {}
    for file in glob.glob(os.path.join(dump, "*.safetensors")):
        for name, tensor in safetensors.numpy.load_file(file).items():
            if name.startswith("parameter/"):
                updated[name.split("/", 1)[1]] = tensor
    exact = module.double()
    x = inputs[0].double() if inputs[0].is_floating_point() else inputs[0]
    exact(x, inputs[1]).backward()
    worst, where = 0.0, ""
    names_of = {}
    for name, parameter in exact.named_parameters(remove_duplicate=False):
        names_of.setdefault(parameter, []).append(name)
    for parameter, names in names_of.items():
        if parameter.grad is None:
            continue
        name = next((one for one in names if one in updated), names[0])  # one of those of a tied parameter
        gradient, before = parameter.grad.numpy(), parameter.detach().numpy()
        if name not in updated:
            return None, f"no {name}"
        found = [before - after for after in (updated[name], updated[name].T) if after.shape == before.shape]
        error = min(np.abs(one - gradient).max() for one in found) / max(1e-9, np.abs(gradient).max())
        if error > worst:
            worst, where = error, name
    return worst, where


def trial(pipeshard, name, work):
    build, make_x, make_labels = MODELS[name]
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    module = build().eval()
    inputs = (make_x(generator), make_labels(generator))
    folder = os.path.join(work, re.sub(r"\W+", "_", name))
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "model.onnx")
    numbers = sum(p.numel() for p in module.parameters() if p.requires_grad)
    note = ""
    for options in ({}, {"optimize": False}):
        try:
            export(module, inputs, path, **options)
        except Exception as error:  # the exporter's own
            return "refused", numbers, f"PyTorch does not export it: {type(error).__name__}"
        code, output, errors = run([pipeshard, "validate", path, "--dim", f"batch={ROWS}", "--cluster", "1x4",
                                    "--stages", "uniform:4", "--microbatches", "4", "--steps", "1"])
        if code == 65 and LOST in errors and not options:
            note = "exported again with optimize=False; "
            continue
        break
    if code == 65:
        return "refused", numbers, note + errors.strip().splitlines()[-1].split(".onnx: ", 1)[-1]
    trains = re.search(r"trains (\d+) of (\d+) parameters", output)
    if code != 0 or trains is None:
        return "FAIL", numbers, f"{note}exit code {code}: {(errors.strip().splitlines() or [''])[-1]}"
    if int(trains[1]) != numbers:
        return "FAIL", numbers, f"{note}trains {trains[1]} elements"
    error, where = gradient_error(pipeshard, path, folder, module, inputs)
    if error is None:
        return "FAIL", numbers, f"{note}gradients: {where}"
    return "PASS" if error < 1e-4 else "FAIL", numbers, f"{note}gradients within {error:.1e} ({where})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeshard")
    parser.add_argument("--only", default="")
    parser.add_argument("--work", default="/tmp/real_models")
    parser.add_argument("--table", help="write the table, as Markdown, to this file")
    arguments = parser.parse_args()
    lines = ["| architecture | trainable elements | result | |", "|---|---|---|---|"]
    failed = False
    for name in MODELS:
        if not re.search(arguments.only, name):
            continue
        try:
            result, numbers, note = trial(arguments.pipeshard, name, arguments.work)
        except Exception as error:  # one of them shall not end the others
            result, numbers, note = "FAIL", 0, f"{type(error).__name__}: {error}"
        failed = failed or result == "FAIL"
        lines.append(f"| {name} | {numbers:,} | {result} | {note[:300]} |")
        print(lines[-1], flush=True)
    if arguments.table:
        with open(arguments.table, "w", encoding="utf-8") as table:
            table.write("\n".join(lines) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
