#!/usr/bin/env python3
"""Writes golden/joint.onnx: a model that PyTorch exported with its backward pass. Needs tools/export/requirements.txt.

    tests/oracle/make_joint.py

A multilayer perceptron with a residual connection; outputs are the loss and the gradient of every parameter but one ("scale", which
does not require one).
"""

import pathlib

import onnx
import torch
from torch.fx.experimental.proxy_tensor import make_fx

OUTPUT = pathlib.Path(__file__).resolve().parent / "golden" / "joint.onnx"
FEATURES, HIDDEN, CLASSES, BATCH = 6, 8, 5, 8


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(FEATURES, HIDDEN)
        self.second = torch.nn.Linear(HIDDEN, HIDDEN)
        self.norm = torch.nn.LayerNorm(HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, CLASSES)
        self.scale = torch.nn.Parameter(torch.rand(CLASSES) + 0.5, requires_grad=False)

    def forward(self, x):
        hidden = torch.nn.functional.gelu(self.first(x))
        hidden = hidden + self.norm(torch.relu(self.second(hidden)))
        return self.head(hidden) * self.scale


def main():
    torch.manual_seed(0)
    model = Model()
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def step(x, labels, *values):
        given = dict(zip(parameters, values))

        def loss(chosen):
            logits = torch.func.functional_call(model, given | chosen, (x,))
            return torch.nn.functional.cross_entropy(logits, labels)

        gradients, value = torch.func.grad_and_value(loss)({name: given[name] for name in trained})
        return (value, *(gradients[name] for name in trained))

    x, labels = torch.randn(BATCH, FEATURES), torch.randint(0, CLASSES, (BATCH,))
    table = torch._decomp.core_aten_decompositions()
    traced = make_fx(step, tracing_mode="symbolic", decomposition_table=table)(x, labels, *parameters.values())

    class Joint(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, value in parameters.items():
                self.register_parameter(name.replace(".", "_"), torch.nn.Parameter(value))

        def forward(self, x, labels):
            return traced(x, labels, *(getattr(self, name.replace(".", "_")) for name in parameters))

    batch = torch.export.Dim("batch", min=2)
    program = torch.onnx.export(
        Joint(), (x, labels), dynamo=True, optimize=False, verbose=False, opset_version=18, input_names=["x", "labels"],
        output_names=["loss"] + [f"grad_{name}" for name in trained],
        dynamic_shapes={"x": {0: batch}, "labels": {0: batch}})
    joint = program.model_proto
    for node in joint.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save(joint, OUTPUT)


if __name__ == "__main__":
    main()
