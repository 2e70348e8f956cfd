"""Turning a PyTorch module into the ONNX file of a training step.

For a module of your own:

    import sys; sys.path.append("tools/export")
    from step_export import export_step, save
    save(export_step(module, {"x": x, "y": y}), "mine.onnx")

where `module(x=x, y=y)` returns the scalar loss, and x and y are tensors with the batch as their first axis.
"""

import pathlib

import onnx_ir as ir
import torch

OPSET = 18


def save(model: ir.Model, path) -> None:
    """Write PATH, and the weights beside it in PATH.data."""
    ir.save(model, path, external_data=pathlib.Path(path).name + ".data")


def export_step(module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> ir.Model:
    """The module's forward pass as an ONNX model whose parameters are exactly the module's.

    The example inputs need at least two samples, since tracing takes a batch of one for a constant; the exported graph
    takes any number. Paths of this machine, which the exporter records as stack traces, are left out.
    """
    batch = torch.export.Dim("batch", min=2)
    program = torch.onnx.export(
        module, kwargs=inputs, dynamo=True, optimize=False, verbose=False, opset_version=OPSET,
        input_names=list(inputs), output_names=["loss"],
        dynamic_shapes={name: {0: batch} for name in inputs})
    optimize_keeping_parameters(program)
    verify_parameters(program.model, module)
    for value in all_values(program.model.graph):
        value.metadata_props.pop("pkg.torch.onnx.stack_trace", None)
    for node in program.model.graph:
        node.metadata_props.pop("pkg.torch.onnx.stack_trace", None)
    return program.model


def is_parameter(value: ir.Value) -> bool:
    return value.metadata_props.get("pkg.torch.export.graph_signature.InputSpec.kind") == "PARAMETER"


def optimize_keeping_parameters(program) -> None:
    """Fold constants and simplify, but leave every parameter alone.

    The optimizer takes initializers for constants: it folds the rows of the position embedding that are used, merges
    initializers that happen to be equal (every fresh LayerNormalization's), and drops biases that are zero. All of it
    is wrong for a model that will be trained. What is a graph input has no known value, so while it runs the
    parameters are graph inputs.
    """
    graph = program.model.graph
    parameters = [(value, value.const_value) for value in graph.initializers.values() if is_parameter(value)]
    inputs = list(graph.inputs)
    for value, _ in parameters:
        del graph.initializers[value.name]
        value.const_value = None
        graph.inputs.append(value)
    program.optimize()
    graph = program.model.graph
    del graph.inputs[len(inputs):]
    for value, tensor in parameters:
        value.const_value = tensor
        graph.register_initializer(value)


def verify_parameters(model: ir.Model, module: torch.nn.Module) -> None:
    """Every parameter of the module is one initializer, under a name that the module knows it by."""
    named = {name: value for name, value in model.graph.initializers.items() if is_parameter(value)}
    exported = {id(module.get_parameter(name)): name for name in named}
    missing = [name for name, parameter in module.named_parameters() if id(parameter) not in exported]
    if missing or len(named) != len(exported):
        raise ValueError(f"parameters lost {missing}, exported {sorted(named)}")
    unused = [name for name, value in named.items() if not value.uses()]
    if unused:
        raise ValueError(f"parameters that the loss does not depend on: {unused}")


def all_values(graph: ir.Graph):
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
