"""Turning a PyTorch module into the ONNX file of a training step.

For a module of your own:

    import sys; sys.path.append("tools/export")
    from step_export import export_step, save
    save(export_step(module, {"x": x, "y": y}), "mine.onnx")

where `module(x=x, y=y)` returns the scalar loss, and x and y are tensors with the batch as their first axis.
"""

import contextlib
import io
import json
import pathlib

import onnx
import onnx_ir as ir
import torch
from onnxscript.rewriter import _basics, _matcher
from torch.nn.modules.batchnorm import _BatchNorm

OPSET = 18
TORCHSCRIPT_OPSET = 17
ALIGNMENT = 64  # bytes, of each weight in a file that is not written
STATE_UPDATES = "pipeshard.state_updates"


def save(model: ir.Model, path) -> None:
    """Write PATH, and the weights beside it in PATH.data."""
    ir.save(model, path, external_data=pathlib.Path(path).name + ".data")


def save_without_weights(model: ir.Model, path) -> int:
    """Write PATH alone; parameters and state refer to a PATH.data of the size that is returned, which need not exist."""
    location, offset = pathlib.Path(path).name + ".data", 0
    state = json.loads(model.metadata_props.get(STATE_UPDATES, "{}"))
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if is_parameter(value) or value.name in state:
            value.const_value = ir.ExternalTensor(location, offset, tensor.nbytes, tensor.dtype, shape=tensor.shape,
                                                  name=value.name)
            offset += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    ir.save(model, path)
    return offset


def export_step(module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> ir.Model:
    """The module's forward pass as an ONNX model whose parameters are exactly the module's.

    The example inputs need at least two samples, since tracing takes a batch of one for a constant; the exported graph
    takes any number. Buffers stay as they are, too: what is computed of them (the angles of rotary positions) is
    computed in the graph. Paths of this machine, which the exporter records as stack traces, are left out.
    """
    batch = torch.export.Dim("batch", min=2)
    # The exporter has batch normalisation for inference only: export that, and put the rest back.
    normalizations = {name: child for name, child in module.named_modules()
                      if isinstance(child, _BatchNorm) and child.training}
    for child in normalizations.values():
        child.eval()
    program = torch.onnx.export(
        module, kwargs=inputs, dynamo=True, optimize=False, verbose=False, opset_version=OPSET,
        input_names=list(inputs), output_names=["loss"],
        dynamic_shapes={name: {0: batch} for name in inputs})
    for child in normalizations.values():
        child.train()
    buffers = dict(module.named_buffers())
    optimize_keeping(program, lambda value: is_parameter(value) or value.name in buffers)
    normalize_by_batch(program.model, normalizations)
    verify_parameters(program.model, module)
    for value in all_values(program.model.graph):
        value.metadata_props.pop("pkg.torch.onnx.stack_trace", None)
    for node in program.model.graph:
        node.metadata_props.pop("pkg.torch.onnx.stack_trace", None)
    return program.model


def export_step_torchscript(module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> ir.Model:
    """The same with the exporter that PyTorch had before, which works out every shape in the graph.

    Its files do not tell parameters from other initializers, except by name.
    """
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    file = io.BytesIO()
    torch.onnx.export(
        module, tuple(inputs.values()), file, dynamo=False, opset_version=TORCHSCRIPT_OPSET,
        training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False,
        input_names=list(inputs), output_names=["loss"], dynamic_axes={name: {0: "batch"} for name in inputs})
    module.load_state_dict(state)
    model = ir.from_proto(onnx.load_from_string(file.getvalue()))
    normalize_by_batch(model, {name: child for name, child in module.named_modules()
                               if isinstance(child, _BatchNorm) and child.training})
    for name, value in model.graph.initializers.items():
        if name in state:
            value.const_value = ir.tensor(state[name], name=name)
    lost = {name for name, _ in module.named_parameters()} - set(model.graph.initializers)
    if lost:
        raise ValueError(f"parameters lost {sorted(lost)}")
    return model


def is_parameter(value: ir.Value) -> bool:
    return value.metadata_props.get("pkg.torch.export.graph_signature.InputSpec.kind") == "PARAMETER"


def optimize_keeping(program, kept) -> None:
    """Fold constants and simplify, but leave every initializer alone that `kept` says is none of the constants.

    The optimizer takes initializers for constants: it folds the rows of the position embedding that are used, merges
    initializers that happen to be equal (every fresh LayerNormalization's), and drops biases that are zero. All of it
    is wrong for a model that will be trained. What is a graph input has no known value, so while it runs the
    parameters and buffers are graph inputs.
    """
    graph = program.model.graph
    trained = [(value, value.const_value) for value in graph.initializers.values() if kept(value)]
    inputs = list(graph.inputs)
    for value, _ in trained:
        del graph.initializers[value.name]
        value.const_value = None
        graph.inputs.append(value)
    with matching_first_nodes():
        program.optimize()
    graph = program.model.graph
    del graph.inputs[len(inputs):]
    for value, tensor in trained:
        value.const_value = tensor
        graph.register_initializer(value)


@contextlib.contextmanager
def matching_first_nodes():
    """Meanwhile a rule for several nodes (two slices that are a Split) is tried where its first node can be.

    onnxscript's matcher, asked about any node, first lists the nodes of the whole graph by operator: quadratic, most of
    the time of a model of 80 layers. It finds no match where the node is not of the operator of the pattern's first one.
    """
    matcher = _matcher.SimplePatternMatcher
    match_all = matcher.match

    def match(self, model, graph, node, **options):
        if not self.pattern.has_single_output_node:
            first = self.pattern.output_nodes[0].op_identifier()
            if first is not None and first != node.op_identifier():
                return _basics.MatchResult().fail("another operator")
        return match_all(self, model, graph, node, **options)

    matcher.match = match
    try:
        yield
    finally:
        matcher.match = match_all


def normalize_by_batch(model: ir.Model, normalizations: dict[str, _BatchNorm]) -> None:
    """Let BatchNormalization use the batch's own statistics, and return the running statistics that follow.

    They become outputs of the model, `<buffer>.updated`; the metadata `pipeshard.state_updates` says as JSON which
    output is the next step's value of which initializer. ONNX defines the running variance by the batch's population
    variance, where PyTorch uses the sample variance.
    """
    updates = {}
    for node in model.graph:
        if node.op_type != "BatchNormalization":
            continue
        buffers = [value.name for value in node.inputs[3:5]]
        owner = normalizations.pop(buffers[0].removesuffix(".running_mean"))
        node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
        node.attributes["momentum"] = ir.AttrFloat32("momentum", 1.0 - owner.momentum)
        node.resize_outputs(3)
        for buffer, initializer, updated in zip(buffers, node.inputs[3:5], node.outputs[1:]):
            updated.name = updates[buffer] = buffer + ".updated"
            updated.shape, updated.type = initializer.shape, initializer.type
            model.graph.outputs.append(updated)
    if normalizations:
        raise ValueError(f"batch normalisations lost {sorted(normalizations)}")
    if updates:
        model.metadata_props[STATE_UPDATES] = json.dumps(updates)


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
