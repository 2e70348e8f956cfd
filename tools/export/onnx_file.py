"""Reading back what export.py wrote."""

import copy
import json

import numpy as np
import onnx
import torch
from onnx import TensorProto, numpy_helper

from models import build

KIND = "pkg.torch.export.graph_signature.InputSpec.kind"


def load(path) -> onnx.ModelProto:
    """The file with its weights."""
    try:
        return onnx.load(path)
    except OSError as error:
        raise SystemExit(f"error: {error}")


def metadata(proto) -> dict[str, str]:
    return {entry.key: entry.value for entry in proto.metadata_props}


def parameters(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """The trainable initializers by name, in file order."""
    names = {value.name for value in model.graph.value_info if metadata(value).get(KIND) == "PARAMETER"}
    if not names:  # TorchScript's exporter does not say
        names = dict(fresh_module(model).named_parameters())
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer if tensor.name in names}


def state_updates(model: onnx.ModelProto) -> dict[str, str]:
    """From an initializer that is state, such as a running mean, to the output that is its next value."""
    return json.loads(metadata(model).get("pipeshard.state_updates", "{}"))


def fresh_module(model: onnx.ModelProto) -> torch.nn.Module:
    """The module that the file was exported from, in float32 and with initial parameters."""
    recipe = metadata(model).get("pipeshard.export_config")
    if recipe is None:
        raise SystemExit("error: not made by export.py: it has no pipeshard.export_config in its metadata")
    recipe = json.loads(recipe)
    return build(recipe["model"], recipe["config"])


def rebuild(model: onnx.ModelProto) -> torch.nn.Module:
    """The PyTorch module that the file was exported from, in float64, with the parameters and buffers that the file holds.

    A parameter's gradient is at `module.get_parameter(name).grad` for the file's name of it, tied weights included.
    """
    module = fresh_module(model).double()
    with torch.no_grad():
        for name, array in parameters(model).items():
            module.get_parameter(name).copy_(torch.from_numpy(array.astype(np.float64)))
        buffers = dict(module.named_buffers())
        for tensor in model.graph.initializer:
            if tensor.name in buffers:
                buffers[tensor.name].copy_(torch.tensor(numpy_helper.to_array(tensor)))
    return module


def is_double(model: onnx.ModelProto) -> bool:
    return any(array.dtype == np.float64 for array in parameters(model).values())


def load_batch(path, model: onnx.ModelProto) -> dict[str, torch.Tensor]:
    """The model's inputs from an .npz file, floating point ones as float64."""
    batch = {}
    try:
        arrays = np.load(path)
    except OSError as error:
        raise SystemExit(f"error: {error}")
    with arrays:
        for value in model.graph.input:
            if value.name not in arrays:
                raise SystemExit(f"error: {path} has no array {value.name}; it holds {', '.join(arrays)}")
            tensor = torch.from_numpy(arrays[value.name])
            batch[value.name] = tensor.double() if tensor.is_floating_point() else tensor
    return batch


def in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same computation with every float32 initializer, constant and declared type as float64."""
    model = copy.deepcopy(model)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT:
                attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float64)))
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
    return model
