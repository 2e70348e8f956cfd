#!/usr/bin/env python3
"""Writes tests/golden/traps/: tiny modules as torch.onnx.export writes them, one for each thing that an exporter does to a
module without a word, and traps.json: how many elements PyTorch would train. Needs tools/export/requirements.txt.

    tests/oracle/make_traps.py [NAME ...]

Modules are unmodified and the calls are default ones; NAME_torchscript is by the older exporter (dynamo=False), NAME_again by
the call that pipeshard's message gives. Of what the exporter wrote only the places in Python's sources are left out, which
nobody reads and which are another machine's.
"""
import json
import pathlib
import sys
import tempfile
import warnings

import onnx
import onnxruntime
import torch
from torch import nn
from torch.nn import functional

warnings.filterwarnings("ignore")
OUTPUT = pathlib.Path(__file__).resolve().parents[1] / "golden" / "traps"
ROWS, TOKENS, WIDTH, WORDS, CLASSES = 4, 3, 4, 6, 3


class Squared(nn.Module):
    """A module and its loss: the mean of squares."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x).square().mean()


class Two(nn.Module):
    """Two modules of one input. Fresh ones hold equal numbers."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        return (self.first(x) + 2 * self.second(x.tanh())).square().mean()


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS + 2, WIDTH)
        self.head = nn.Linear(WIDTH, 1)
        self.register_buffer("places", torch.arange(TOKENS))

    def forward(self, x):
        hidden = self.words(x) + self.positions(self.places)
        return self.head(hidden.tanh()).square().mean()


class LayerScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, WIDTH, 1)
        self.gamma = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x):
        return self.conv(x).mul(self.gamma.reshape(1, -1, 1, 1)).square().mean()


class ClassToken(nn.Module):
    """The first token of a transformer on images, as torchvision and timm write it: of zeros at first."""

    def __init__(self):
        super().__init__()
        self.class_token, self.fc = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        hidden = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1)
        return self.fc(hidden).tanh().sum(1).square().mean()


class Functions(nn.Module):
    """A temperature, gates and rates, each by a function of a parameter: of CLIP, of Mamba, and of notebooks."""

    def __init__(self):
        super().__init__()
        self.fc, self.temperature = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.tensor(1.3))
        self.rates, self.gates = nn.Parameter(torch.rand(WIDTH)), nn.Parameter(torch.rand(WIDTH, 1) - 0.5)

    def forward(self, x):
        hidden = self.fc(x) * self.temperature.exp() + -torch.exp(self.rates)
        return (hidden * torch.sigmoid(self.gates).view(1, -1)).tanh().square().mean()


class Windows(nn.Module):
    """The biases of an attention in windows of 2 x 2 places, by the places' distance: Swin's."""

    def __init__(self):
        super().__init__()
        self.relative_position_bias_table = nn.Parameter(torch.rand(9, 2))
        places = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")).flatten(1)
        distances = (places[:, :, None] - places[:, None, :] + 1).permute(1, 2, 0)
        self.register_buffer("relative_position_index", (distances * torch.tensor([3, 1])).sum(-1))

    def forward(self, x):
        biases = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(4, 4, -1)
        scores = x[..., :, None] * x[..., None, :] + biases.permute(2, 0, 1).contiguous().unsqueeze(0)
        return scores.softmax(-1).square().mean()


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells, self.head = kind(WIDTH, 3, batch_first=True, bidirectional=True), nn.Linear(6, 1)

    def forward(self, x):
        return self.head(self.cells(x)[0]).square().mean()


class BiasTable(nn.Module):
    """The relative positions of an attention's tokens."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.rand(2 * TOKENS - 1))
        self.fc = nn.Linear(WIDTH, WIDTH)
        places = torch.arange(TOKENS)
        self.register_buffer("places", (places[:, None] - places[None, :] + TOKENS - 1).flatten())

    def forward(self, x):
        hidden = self.fc(x)
        scores = hidden @ x.transpose(1, 2) + self.table[self.places].view(TOKENS, TOKENS)
        return (scores.softmax(-1) @ hidden).square().mean()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x, labels):
        hidden = self.norm(self.words(x))
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())


class Twins(nn.Module):
    """What both modules compute is equal, too."""

    def __init__(self):
        super().__init__()
        self.norms = Product(nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH))

    def forward(self, x):
        return self.norms(x).sum(-1).tanh().mean()


class TiedTwins(Tied):
    """Beside a tied weight one that the file has lost: its call is equal to another one."""

    def __init__(self):
        super().__init__()
        self.norm = Product(nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False))


class TiedTwinsWithoutName(TiedTwins):
    """The same, of which the tied weight has one name only."""

    def __init__(self):
        super().__init__()
        del self.head

    def forward(self, x, labels):
        scores = functional.linear(self.norm(self.words(x)), self.words.weight)
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


class Product(Two):
    def forward(self, x):
        return self.first(x) * self.second(x)


class Unread(nn.Module):
    """A part of the module that its forward pass does not use."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 2)

    def forward(self, x):
        return self.used(x).square().mean()


class Heads(nn.Module):
    """A loss, and a second output that it does not depend on."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.first(x).square().mean(), self.second(x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        hidden = self.fc(x)[:, None]
        return functional.scaled_dot_product_attention(hidden, hidden, hidden, dropout_p=0.1).square().mean()


class Classifier(nn.Module):
    def __init__(self, **loss):
        super().__init__()
        self.fc, self.loss = nn.Linear(WIDTH, CLASSES), nn.CrossEntropyLoss(**loss)

    def forward(self, x, labels):
        logits = self.fc(x)
        return self.loss(logits, labels), logits


class Masked(nn.Module):
    """A weight in a place where operators have no weights: what hidden tokens are replaced by, and a lower limit."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.mask_token = nn.Parameter(torch.rand(WIDTH))
        self.least = nn.Parameter(torch.rand(WIDTH) - 1)

    def forward(self, x):
        hidden = torch.where(x > 0.5, self.mask_token, self.fc(x))
        return torch.maximum(hidden, self.least).square().mean()


def normalised(before):
    """A batch normalisation that has seen data."""
    norm = nn.BatchNorm2d(2)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    return Squared(before, norm)


def convolved():
    return normalised(nn.Conv2d(2, 2, 1))


def normalized():
    return Squared(nn.Conv2d(2, WIDTH, 1), nn.GroupNorm(2, WIDTH), nn.Tanh(), nn.Conv2d(WIDTH, WIDTH, 1), nn.GroupNorm(2, WIDTH))


def fresh():
    return Squared(nn.Tanh(), nn.BatchNorm2d(2))


def linear():
    return Squared(nn.Linear(WIDTH, 2))


def dropping():
    return Squared(nn.Linear(WIDTH, 2), nn.Dropout(0.5))


def equal():
    return Two(nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH))


def partly_frozen():
    module = Squared(nn.Linear(WIDTH, 2), nn.Linear(2, 2))
    module.get_parameter("layers.0.weight").requires_grad_(False)
    return module


def images():
    return (torch.randn(ROWS, 2, 3, 3),)


def tokens():
    return (torch.randn(ROWS, TOKENS, WIDTH),)


def windows():
    return (torch.randn(ROWS, 2, 4),)


def rows():
    return (torch.randn(ROWS, WIDTH),)


def words():
    return (torch.randint(0, WORDS, (ROWS, TOKENS)),)


def words_and_labels():
    return words() + words()


def rows_and_labels():
    return (*rows(), torch.randint(0, CLASSES, (ROWS,)))


def export(module, inputs, path, **options):
    if "dynamic_shapes" in options:
        shapes = {}
    elif options.get("dynamo", True):
        shapes = {"dynamic_shapes": tuple({0: "batch"} for _ in inputs)}
    else:
        names = [f"input_{i}" for i in range(len(inputs))]
        shapes = {"input_names": names, "dynamic_axes": {name: {0: "batch"} for name in names}}
    torch.onnx.export(module, inputs, path, verbose=False, external_data=False, **shapes, **options)


def without_sources(proto):
    for node in proto.graph.node:
        node.doc_string = ""
        kept = [entry for entry in node.metadata_props if entry.key != "pkg.torch.onnx.stack_trace"]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    return proto


def without_marks(proto):
    """As other tools write files: nothing tells of the module but the names of its weights."""
    graph = proto.graph
    for part in [proto, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer]:
        del part.metadata_props[:]
    for node in graph.node:
        node.doc_string = ""
    proto.producer_name = ""
    return proto


def optimized(proto):
    """As a session of ONNX Runtime saves it."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = f"{folder}/model.onnx"
        onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


SCRIPT = {"dynamo": False}
FIXED = {"dynamic_shapes": None}  # as people call it who give no shapes
WHOLE = {"optimize": False}  # as pipeshard says where the exporter's optimizer has lost something
WHOLE_SCRIPT = {**SCRIPT, "training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
# name: module, its inputs, options of the export
EVALUATED = {
    "batch_norm_folded": (convolved, images, {}),
    "batch_norm_folded_again": (convolved, images, WHOLE),
    "batch_norm_folded_torchscript": (convolved, images, SCRIPT),
    "batch_norm_folded_torchscript_again": (convolved, images, WHOLE_SCRIPT),
    "statistics_merged": (fresh, images, {}),
    "statistics_merged_torchscript": (fresh, images, SCRIPT),
    "transposed": (linear, tokens, {}),
    "transposed_torchscript": (linear, tokens, SCRIPT),
    "merged": (equal, tokens, {}),
    "merged_torchscript": (equal, tokens, SCRIPT),
    "positions_folded": (Positions, words, {}),
    "positions_folded_torchscript": (Positions, words, SCRIPT),
    "layer_scale_folded": (LayerScale, images, {}),
    "layer_scale_folded_torchscript": (LayerScale, images, SCRIPT),
    "class_token_folded": (ClassToken, tokens, FIXED),
    "functions_folded": (Functions, tokens, {}),
    "group_norms_folded": (normalized, images, {}),
    "lstm_folded": (lambda: Recurrent(nn.LSTM), tokens, {}),
    "gru_folded": (lambda: Recurrent(nn.GRU), tokens, {}),
    "windows_folded": (Windows, windows, {}),
    "bias_table_folded": (BiasTable, tokens, {}),
    "bias_table_folded_again": (BiasTable, tokens, WHOLE),
    "bias_table_folded_torchscript": (BiasTable, tokens, SCRIPT),
    "bias_table_folded_torchscript_again": (BiasTable, tokens, WHOLE_SCRIPT),
    "tied": (Tied, words_and_labels, {}),
    "tied_torchscript": (Tied, words_and_labels, SCRIPT),
    "tied_and_lost": (TiedTwins, words_and_labels, {}),
    "tied_and_lost_without_name": (TiedTwinsWithoutName, words_and_labels, {}),
    "lost": (Twins, tokens, {}),
    "lost_torchscript": (Twins, tokens, SCRIPT),
    "unread": (Unread, rows, {}),
    "beside_the_loss": (Heads, rows, {}),
    "label_smoothing": (lambda: Classifier(label_smoothing=0.1), rows_and_labels, {}),
    "frozen": (partly_frozen, rows, {}),
    "frozen_torchscript": (partly_frozen, rows, SCRIPT),
    "unusual_place": (Masked, rows, {}),
    "unusual_place_torchscript": (Masked, rows, SCRIPT),
}
TRAINING = {  # the module is in training mode
    "inference_mode": (lambda: normalised(nn.Tanh()), images, {}),
    "dropout": (dropping, rows, {}),
    "dropout_torchscript": (dropping, rows, SCRIPT),
    "attention_dropout": (Attention, tokens, {}),
    "attention_dropout_torchscript": (Attention, tokens, SCRIPT),
}
MADE_OF = {  # name: of which of these files, and how
    "unmarked": ("unusual_place", without_marks),
    "runtime_optimized": ("tied", optimized),
    "runtime_optimized_torchscript": ("tied_torchscript", optimized),
}


def elements_that_learn(module, inputs):
    """What a backward pass of PyTorch reaches."""
    result = module(*inputs)
    (result[0] if isinstance(result, tuple) else result).backward()
    return sum(p.numel() for p in module.parameters() if p.grad is not None)


def main():
    OUTPUT.mkdir(exist_ok=True, parents=True)
    wanted = sys.argv[1:]  # others stay as they are
    manifest = json.loads((OUTPUT / "traps.json").read_text()) if wanted else {}
    for name, (build, make_inputs, options) in {**EVALUATED, **TRAINING}.items():
        if wanted and name not in wanted:
            continue
        torch.manual_seed(0)
        module, inputs, path = build().train(name in TRAINING), make_inputs(), OUTPUT / f"{name}.onnx"
        export(module, inputs, path, **options)
        onnx.save(without_sources(onnx.load(path)), path)
        manifest[name] = elements_that_learn(module, inputs)
    for name, (source, make) in MADE_OF.items():
        if wanted and name not in wanted:
            continue
        onnx.save(make(onnx.load(OUTPUT / f"{source}.onnx")), OUTPUT / f"{name}.onnx")
        manifest[name] = manifest[source]
    manifest = {name: manifest[name] for name in {**EVALUATED, **TRAINING, **MADE_OF}}
    (OUTPUT / "traps.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    main()
