#!/usr/bin/env python3
"""Writes tests/golden/forms/: small models in every form in which a file can hold a training step. Needs tools/export/requirements.txt.

    tests/oracle/make_forms.py [NAME ...]

Forward, backward and update are traced from PyTorch; names are left out where the form leaves them out.
"""

import pathlib
import sys

import numpy
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.optim.adam import adam
from torch.optim.sgd import sgd

OUTPUT = pathlib.Path(__file__).resolve().parents[1] / "golden" / "forms"
FEATURES, HIDDEN, CLASSES, BATCH = 6, 8, 5, 8


class Perceptron(torch.nn.Module):
    """Two layers of equal shapes, so that shapes alone do not say whose gradient an output is."""

    def __init__(self, frozen=()):
        super().__init__()
        self.first = torch.nn.Linear(FEATURES, HIDDEN)
        self.second = torch.nn.Linear(HIDDEN, HIDDEN)
        self.third = torch.nn.Linear(HIDDEN, HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, CLASSES)
        self.scale = torch.nn.Parameter(torch.rand(CLASSES) + 0.5)
        for name in frozen:
            self.get_parameter(name).requires_grad_(False)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        hidden = hidden + functional.gelu(self.second(hidden))
        hidden = torch.tanh(self.third(hidden))
        return self.head(hidden) * self.scale


class Normalised(torch.nn.Module):
    """A batch normalisation of plain operators: running statistics have the shapes of parameters, too."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(FEATURES, HIDDEN)
        self.norm = torch.nn.BatchNorm1d(HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        hidden = self.first(x)
        mean, variance = hidden.mean(0), hidden.var(0, unbiased=False)
        self.norm.running_mean.mul_(0.9).add_(0.1 * mean)
        self.norm.running_var.mul_(0.9).add_(0.1 * variance)
        hidden = (hidden - mean) * torch.rsqrt(variance + 1e-5) * self.norm.weight + self.norm.bias
        return self.head(torch.relu(hidden))


def trained_names(model):
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def cross_entropy(logits, labels, _):
    return functional.cross_entropy(logits, labels)


def decayed_cross_entropy(logits, labels, parameters):
    """The penalty on large weights is part of the loss."""
    penalty = sum((value * value).sum() for value in parameters.values())
    return functional.cross_entropy(logits, labels) + 1e-3 * penalty


def inputs_of():
    return torch.randn(BATCH, FEATURES), torch.randint(0, CLASSES, (BATCH,))


def gradients_of(model, loss_of=cross_entropy):
    """step(x, labels, *parameters, *buffers) -> loss, gradients by name, new buffers by name"""
    parameters = [name for name, _ in model.named_parameters()]
    buffers = [name for name, _ in model.named_buffers()]
    trained = trained_names(model)

    def step(x, labels, *values):
        given = dict(zip(parameters + buffers, values))

        def loss(chosen):
            copies = {name: given[name].clone() for name in buffers}
            logits = torch.func.functional_call(model, given | copies | chosen, (x,))
            return loss_of(logits, labels, given | chosen), copies

        gradients, (value, kept) = torch.func.grad_and_value(loss, has_aux=True)({name: given[name] for name in trained})
        return value, gradients, kept

    return step


def trace(step, *arguments, mode="symbolic"):
    table = torch._decomp.core_aten_decompositions()
    return make_fx(step, tracing_mode=mode, decomposition_table=table)(*arguments)


def export(module, arguments, inputs, outputs, batched=(0, 1)):
    """The dynamo exporter, without what it says of the module."""
    batch = torch.export.Dim("batch", min=2)
    shapes = tuple({0: batch} if i in batched else None for i in range(len(arguments)))
    program = torch.onnx.export(
        module, arguments, dynamo=True, optimize=False, verbose=False, opset_version=18, input_names=inputs, output_names=outputs,
        dynamic_shapes=(shapes,) if isinstance(module, (WithInputs, Flat)) else shapes)
    proto = program.model_proto
    for node in proto.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for value in [*proto.graph.input, *proto.graph.output, *proto.graph.value_info, *proto.graph.initializer]:
        del value.metadata_props[:]
    del proto.graph.metadata_props[:]
    del proto.metadata_props[:]
    return proto


def save(proto, name):
    OUTPUT.mkdir(exist_ok=True, parents=True)
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, OUTPUT / f"{name}.onnx")


class WithWeights(torch.nn.Module):
    """A traced step whose weights are initializers of the file, named like the model's."""

    def __init__(self, traced, model):
        super().__init__()
        self.traced = traced
        self.names = []
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            self.names.append(name.replace(".", "_"))
            self.register_parameter(self.names[-1], torch.nn.Parameter(value.detach().to(value.dtype), requires_grad=False))

    def forward(self, x, labels):
        return self.traced(x, labels, *(getattr(self, name) for name in self.names))


class WithInputs(torch.nn.Module):
    """A traced step that takes its weights as inputs, first: as AOTAutograd's joint graphs."""

    def __init__(self, traced):
        super().__init__()
        self.traced = traced

    def forward(self, *arguments):
        *values, x, labels = arguments
        return self.traced(x, labels, *values)


def values_of(model):
    return [value.detach() for value in [*model.parameters(), *model.buffers()]]


def joint(name, model, loss_of=cross_entropy, buffers=(), mode="symbolic"):
    """Outputs without names that say anything: the loss, the gradients, the new buffers. Mode "real": the batch has one size."""
    step = gradients_of(model, loss_of)

    def flat(*arguments):
        value, gradients, kept = step(*arguments)
        return (value, *gradients.values(), *(kept[buffer] for buffer in buffers))

    arguments = inputs_of()
    traced = trace(flat, *arguments, *values_of(model), mode=mode)
    outputs = 1 + len(trained_names(model)) + len(buffers)
    save(export(WithWeights(traced, model), arguments, ["x", "labels"], [f"output_{i}" for i in range(outputs)],
                batched=(0, 1) if mode == "symbolic" else ()), name)


def joint_inputs(name, model):
    """primals_1.. are the parameters, then come the batch inputs."""
    step = gradients_of(model)

    def flat(*arguments):
        value, gradients, _ = step(*arguments)
        return (value, *gradients.values())

    batch = inputs_of()
    traced = trace(flat, *batch, *values_of(model))
    arguments = (*values_of(model), *batch)
    count = len(arguments)
    save(export(WithInputs(traced), arguments, [f"primals_{i + 1}" for i in range(count)],
                [f"output_{i}" for i in range(count - 1)], batched=(count - 2, count - 1)), name)


# ---- ONNX Runtime's training artifacts, as onnxruntime.training.artifacts writes them: names, doc_string and order are its own


class TwoLayers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(FEATURES, HIDDEN)
        self.fc2 = torch.nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


LOSS, LOG_PROB = "onnx::loss::2", "onnx::log_prob::3"
ORT_DOMAINS = ["ai.onnx.ml", "com.ms.internal.nhwc", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft",
               "com.microsoft.experimental", "com.microsoft.nchwc", "org.pytorch.aten"]


def ort_model(graph):
    imports = [helper.make_opsetid("", 15)] + [helper.make_opsetid(domain, 1) for domain in ORT_DOMAINS]
    return helper.make_model(graph, ir_version=8, opset_imports=imports, producer_name="pytorch", producer_version="2.1.0")


def float_value(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def ort_forward():
    return [
        helper.make_node("Gemm", ["input", "fc1.weight", "fc1.bias"], ["/fc1/Gemm_output_0"], name="/fc1/Gemm", alpha=1.0, beta=1.0,
                         transB=1),
        helper.make_node("Relu", ["/fc1/Gemm_output_0"], ["/relu/Relu_output_0"], name="/relu/Relu"),
        helper.make_node("Gemm", ["/relu/Relu_output_0", "fc2.weight", "fc2.bias"], ["output"], name="/fc2/Gemm", alpha=1.0, beta=1.0,
                         transB=1),
        helper.make_node("SoftmaxCrossEntropyLoss", ["output", "labels"], [LOSS, LOG_PROB], name="onnx::SoftmaxCrossEntropyLoss::0",
                         reduction="mean"),
    ]


def ort_backward(trained):
    def node(op_type, inputs, outputs, forward, index, **attributes):
        return helper.make_node(op_type, inputs, outputs, name=f"{forward}_Grad/{op_type}_{index}", doc_string="Backward pass", **attributes)

    nodes = [node("SoftmaxCrossEntropyLossGrad", [f"{LOSS}_grad", LOG_PROB, "labels"], ["output_grad"],
                  "onnx::SoftmaxCrossEntropyLoss::0", 0, reduction="mean", domain="com.microsoft")]

    def layer(name, given, gradient, needs_input):
        forward = f"/{name}/Gemm"
        if needs_input:
            nodes.append(node("Gemm", [gradient, f"{name}.weight"], [f"{given}_grad"], forward, 0, alpha=1.0))
        if f"{name}.weight" in trained:
            nodes.append(node("Gemm", [gradient, given], [f"{name}.weight_grad"], forward, 1, alpha=1.0, transA=1))
        if f"{name}.bias" in trained:
            nodes.append(node("ReduceSum", [gradient, f"{name}_axes"], [f"{forward}_Grad/ReduceSum_2_output"], forward, 2, keepdims=0))
            nodes.append(node("Identity", [f"{forward}_Grad/ReduceSum_2_output"], [f"{name}.bias_grad"], forward, 3))

    layer("fc2", "/relu/Relu_output_0", "output_grad", True)
    nodes.append(node("ReluGrad", ["/relu/Relu_output_0_grad", "/relu/Relu_output_0"], ["/fc1/Gemm_output_0_grad"], "/relu/Relu", 0,
                      domain="com.microsoft"))
    layer("fc1", "input", "/fc1/Gemm_output_0_grad", False)
    return nodes


def ort_training(name, frozen=()):
    """training_model.onnx, and beside it a batch with PyTorch's loss and gradients."""
    model = TwoLayers()
    parameters = dict(model.named_parameters())
    trained = [parameter for parameter in parameters if parameter not in frozen]
    axes = [numpy_helper.from_array(numpy.array([0]), f"{layer}_axes") for layer in ("fc1", "fc2") if f"{layer}.bias" in trained]
    inputs = [float_value("input", ["batch_size", FEATURES]), helper.make_tensor_value_info("labels", TensorProto.INT64, ["batch_size"])]
    inputs += [float_value(key, list(value.shape)) for key, value in parameters.items()]
    inputs += [float_value(f"{key}_grad.accumulation.buffer", list(parameters[key].shape)) for key in trained]
    inputs.append(helper.make_tensor_value_info("lazy_reset_grad", TensorProto.BOOL, [1]))
    outputs = [float_value(LOSS, []), float_value("output", ["batch_size", CLASSES])]
    outputs += [helper.make_tensor_value_info(f"{key}_grad.accumulation.out", TensorProto.BOOL, [1]) for key in trained]
    accumulators = [helper.make_node("InPlaceAccumulatorV2", [f"{key}_grad.accumulation.buffer", f"{key}_grad", "lazy_reset_grad"],
                                     [f"{key}_grad.accumulation.out"], name=f"GradientAccumulator{i}", domain="com.microsoft")
                    for i, key in enumerate(trained)]
    seed = numpy_helper.from_array(numpy.array(1, dtype=numpy.float32), f"{LOSS}_grad")
    graph = helper.make_graph(ort_forward() + ort_backward(trained) + accumulators, "main_graph", inputs, outputs, [seed, *axes])
    OUTPUT.mkdir(exist_ok=True, parents=True)
    onnx.save(ort_model(graph), OUTPUT / f"{name}.onnx")

    x, labels = inputs_of()
    loss = functional.cross_entropy(model(x), labels)
    loss.backward()
    data = {"input": x, "labels": labels, LOSS: loss} | parameters
    data |= {f"{key}_grad": parameters[key].grad for key in trained}
    save_data(data, name)


def save_data(tensors, name):
    """Numbers for a form, as initializers of a model without nodes."""
    data = [numpy_helper.from_array(value.detach().numpy(), key) for key, value in tensors.items()]
    graph = helper.make_graph([], "data", [], [], data)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 15)]), OUTPUT / f"{name}_data.onnx")


def ort_eval(name):
    """eval_model.onnx: the forward pass, weights as inputs."""
    inputs = [float_value("input", ["batch_size", FEATURES]), helper.make_tensor_value_info("labels", TensorProto.INT64, ["batch_size"])]
    inputs += [float_value(key, list(value.shape)) for key, value in TwoLayers().named_parameters()]
    graph = helper.make_graph(ort_forward(), "main_graph", inputs,
                              [float_value(LOSS, []), float_value("output", ["batch_size", CLASSES])])
    save(ort_model(graph), name)


def ort_optimizer(name):
    """optimizer_model.onnx: sequences of all parameters, gradients and moments."""

    def sequence(key):
        return helper.make_tensor_sequence_value_info(key, TensorProto.FLOAT, None)

    node = helper.make_node("AdamWOptimizer",
                            ["learning_rate", "step", "params", "gradients", "first_order_moments", "second_order_moments"], ["update"],
                            name="AdamWOptimizer0", domain="com.microsoft", alpha=0.9, beta=0.999, epsilon=1e-6, weight_decay=0.01,
                            correct_bias=1, adam_mode=1)
    inputs = [float_value("learning_rate", [1]), helper.make_tensor_value_info("step", TensorProto.INT64, [1])]
    inputs += [sequence(key) for key in ("params", "gradients", "first_order_moments", "second_order_moments")]
    outputs = [helper.make_tensor_value_info("update", TensorProto.BOOL, [1])]
    onnx.save(ort_model(helper.make_graph([node], "AdamW", inputs, outputs)), OUTPUT / f"{name}.onnx")


# ---- operators of these files, one node each, with PyTorch's results


class Operators:
    """A graph of nodes whose inputs are initializers; "<output>.expected" are the results they should have."""

    def __init__(self):
        self.nodes, self.data, self.outputs = [], [], []

    def constant(self, name, value):
        self.data.append(numpy_helper.from_array(torch.as_tensor(value).detach().numpy(), name))
        return name

    def add(self, op_type, inputs, expected, domain="com.microsoft", case="", **attributes):
        """Inputs: tensors, lists of integers, or None; expected likewise, None for an output that is left out."""
        name = f"{op_type}{case}"
        given = ["" if value is None else self.constant(f"{name}.input{i}", value) for i, value in enumerate(inputs)]
        outputs = []
        for i, value in enumerate(expected):
            outputs.append("" if value is None else f"{name}.output{i}")
            if value is not None:
                value = torch.as_tensor(value)
                self.constant(f"{outputs[-1]}.expected", value)
                kind = helper.np_dtype_to_tensor_dtype(value.detach().numpy().dtype)
                self.outputs.append(helper.make_tensor_value_info(outputs[-1], kind, list(value.shape)))
        self.nodes.append(helper.make_node(op_type, given, outputs, name=name, domain=domain, **attributes))

    def save(self, name, imports):
        graph = helper.make_graph(self.nodes, name, [], self.outputs, self.data)
        opsets = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
        onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opsets), OUTPUT / f"{name}.onnx")


def with_gradients(function, *inputs):
    """The result, a random gradient of it, and the gradients of the floating-point inputs."""
    leaves = [value.clone().requires_grad_(value.is_floating_point()) for value in inputs]
    result = function(*leaves)
    dy = torch.randn(result.shape)
    trained = [leaf for leaf in leaves if leaf.requires_grad]
    return result.detach(), dy, torch.autograd.grad(result, trained, dy)


def activation_gradients(operators):
    x, bias = torch.randn(3, 4), torch.randn(4)
    of_output = {"ReluGrad": torch.relu, "SigmoidGrad": torch.sigmoid, "TanhGrad": torch.tanh,
                 "LeakyReluGrad": lambda value: functional.leaky_relu(value, 0.2)}
    for op_type, function in of_output.items():
        y, dy, (dx,) = with_gradients(function, x)
        operators.add(op_type, [dy, y], [dx], **({"alpha": 0.2} if op_type == "LeakyReluGrad" else {}))
    of_input = {"GeluGrad": functional.gelu, "FastGeluGrad": lambda value: functional.gelu(value, approximate="tanh"),
                "QuickGeluGrad": lambda value: value * torch.sigmoid(1.5 * value)}
    for op_type, function in of_input.items():
        _, dy, (dx,) = with_gradients(function, x)
        operators.add(op_type, [dy, x], [dx], **({"alpha": 1.5} if op_type == "QuickGeluGrad" else {}))
        if op_type != "QuickGeluGrad":
            _, dy, (dx, _) = with_gradients(lambda value, added, of=function: of(value + added), x, bias)
            operators.add(f"Bias{op_type}_dX", [dy, x, bias], [dx])


def softmax_gradients(operators):
    x = torch.randn(2, 3, 4)
    for prefix, function in {"Softmax": torch.softmax, "LogSoftmax": torch.log_softmax}.items():
        y, dy, (dx,) = with_gradients(lambda value, of=function: of(value, 1), x)
        operators.add(f"{prefix}Grad_13", [dy, y], [dx], axis=1)
        y, dy, (dx,) = with_gradients(lambda value, of=function: of(value.reshape(2, 12), 1).reshape(2, 3, 4), x)
        operators.add(f"{prefix}Grad", [dy, y], [dx], axis=1)


def loss_gradients(operators):
    scores, labels = torch.randn(4, 5, 3), torch.randint(0, 5, (4, 3))
    labels[1, 2] = 2
    weights = torch.rand(5) + 0.5
    for case, arguments in {"mean": {}, "sum": {"reduction": "sum"}, "none": {"reduction": "none"},
                            "weighted": {"weight": weights, "ignore_index": 2}, "ignoring": {"ignore_index": 2}}.items():
        loss, dy, (gradient,) = with_gradients(lambda value, given=arguments: functional.cross_entropy(value, labels, **given), scores)
        log_probabilities = torch.log_softmax(scores, 1)
        attributes = {"reduction": arguments.get("reduction", "mean")}
        inputs = [dy, log_probabilities, labels, arguments.get("weight")]
        ignored = arguments.get("ignore_index")
        more = {} if ignored is None else {"ignore_index": ignored}
        operators.add("SoftmaxCrossEntropyLossGrad", inputs[:4 if "weight" in arguments else 3], [gradient], case=case, **attributes, **more)
        number = None if ignored is None else torch.tensor(ignored)
        operators.add("SoftmaxCrossEntropyLossInternalGrad", [*inputs, number], [gradient], case=case, **attributes)
        operators.add("SoftmaxCrossEntropyLossInternal", [scores, labels, arguments.get("weight"), number], [loss, log_probabilities],
                      case=case, **attributes)


def normalisation_gradients(operators):
    x, scale, bias = torch.randn(2, 3, 4), torch.rand(3, 4) + 0.5, torch.randn(3, 4)
    y, dy, (dx, dscale, dbias) = with_gradients(lambda a, b, c: functional.layer_norm(a, (3, 4), b, c, 1e-5), x, scale, bias)
    mean = x.mean((1, 2), keepdim=True)
    inverse = torch.rsqrt(x.var((1, 2), unbiased=False, keepdim=True) + 1e-5)
    operators.add("LayerNormalizationGrad", [dy, x, scale, mean, inverse], [dx, dscale, dbias], axis=1)
    operators.add("InvertibleLayerNormalizationGrad", [dy, y, scale, bias, inverse], [dx, dscale, dbias], axis=1)
    scale = torch.rand(4) + 0.5
    _, dy, (dx, dscale) = with_gradients(lambda a, b: functional.rms_norm(a, (4,), b, 1e-5), x, scale)
    inverse = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
    operators.add("SimplifiedLayerNormalizationGrad", [dy, x, scale, inverse], [dx, dscale])


def movement_gradients(operators):
    x = torch.randn(4, 5, 3)
    shape = torch.tensor(x.shape)
    indices = torch.tensor([[0, 4], [4, 2]])
    _, dy, (dx,) = with_gradients(lambda value: value[:, indices], x)
    operators.add("GatherGrad", [shape, indices, dy], [dx], axis=1)
    operators.add("GatherGrad", [shape, indices - 5, dy], [dx], axis=-2, case="negative")
    places = torch.randint(0, 5, (4, 2, 3))
    _, dy, (dx,) = with_gradients(lambda value: value.gather(1, places), x)
    operators.add("GatherElementsGrad", [dy, shape, places], [dx], axis=1)
    points = torch.tensor([[1, 2], [3, 0], [1, 2]])
    _, dy, (dx,) = with_gradients(lambda value: value[points[:, 0], points[:, 1]], x)
    operators.add("GatherNDGrad", [shape, points, dy], [dx])
    _, dy, (dx,) = with_gradients(lambda value: value[1:, :, -2:], x)
    operators.add("SliceGrad", [dy, shape, [1, -2], [9, 9], [0, 2]], [dx])
    _, dy, (dx,) = with_gradients(lambda value: value[1:4:2, 1:5].flip(1), x)
    operators.add("SliceGrad", [dy, shape, [1, 9], [4, 0], [0, 1], [2, -1]], [dx], case="steps")
    mask = torch.rand(4, 5, 3) > 0.3
    operators.add("DropoutGrad", [x, mask, torch.tensor(0.3), torch.tensor(True)], [torch.where(mask, x / 0.7, 0.0)])
    operators.add("DropoutGrad", [x, mask, torch.tensor(0.3), torch.tensor(False)], [x], case="off")


def product_gradients(operators):
    a, b = torch.randn(2, 3, 4), torch.rand(3, 1) + 0.5
    _, dy, (da, db) = with_gradients(torch.div, a, b)
    operators.add("DivGrad", [dy, a, b], [da, db])
    operators.add("DivGrad", [dy, a, b], [None, db], case="divisor")
    for case, group, sizes in (("", 1, {"stride": 1, "padding": 1, "dilation": 1}), ("grouped", 2, {"stride": 2, "padding": 1, "dilation": 2})):
        x, w, bias = torch.randn(2, 4, 8, 7), torch.randn(6, 4 // group, 3, 2), torch.randn(6)
        _, dy, gradients = with_gradients(lambda *given, by=sizes, in_groups=group: functional.conv2d(*given, **by, groups=in_groups), x, w, bias)
        operators.add("ConvGrad", [dy, x, w], gradients, case=case, group=group, strides=[sizes["stride"]] * 2,
                      pads=[sizes["padding"]] * 4, dilations=[sizes["dilation"]] * 2, kernel_shape=[3, 2])
    x = torch.randn(2, 3, 5, 5)
    _, dy, (dx,) = with_gradients(lambda value: functional.max_pool2d(value, 3, 2, 1), x)
    _, places = functional.max_pool2d(x, 3, 2, 1, return_indices=True)
    places = places + 25 * torch.arange(6).reshape(2, 3, 1, 1)
    operators.add("MaxPoolGrad", [dy, places], [dx], domain="", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])


def further_operators(operators):
    x = torch.randn(4, 5, 3)
    y = torch.randn(4, 2, 3)
    operators.add("ConcatTraining", [x, y], [torch.cat([x, y], 1), torch.tensor([5, 2])], axis=1)
    operators.add("SplitTraining", [x, [2, 3]], [x[:, :2], x[:, 2:]], axis=1)
    operators.add("ReduceSumTraining", [x, [0, -1]], [x.sum((0, 2))], keepdims=0)
    operators.add("ReduceSumTraining", [x, numpy.zeros(0, numpy.int64)], [x], noop_with_empty_axes=1, case="none")
    operators.add("ReduceSumTraining", [x, numpy.zeros(0, numpy.int64)], [x.sum((0, 1, 2), keepdim=True)], case="all")
    operators.add("BroadcastGradientArgs", [[2, 1, 4], [3, 1]], [[1], [2, 0]])
    operators.add("BroadcastGradientArgs", [[3], [2, 3]], [[0], numpy.zeros(0, numpy.int64)], case="none")
    operators.add("Scale", [x, torch.tensor(4.0)], [x / 4], scale_down=1)


def training_operators(name):
    operators = Operators()
    for family in (activation_gradients, softmax_gradients, loss_gradients, normalisation_gradients, movement_gradients,
                   product_gradients, further_operators):
        family(operators)
    operators.save(name, {"": 18, "com.microsoft": 1})


# ---- a whole step: weights, states of the optimizer and batch in; loss, weights and states out, as plain operators


def sgd_step(momentum=0.0, nesterov=False, weight_decay=0.0, dampening=0.0, rate=0.1):
    def update(parameters, gradients, states, step, lr):
        sgd(parameters, gradients, states[0] if momentum else [None] * len(parameters), weight_decay=weight_decay,
                            momentum=momentum, lr=rate if lr is None else lr, dampening=dampening, nesterov=nesterov, maximize=False,
                            foreach=False)

    return update, 1 if momentum else 0


def adam_step(decoupled, weight_decay=0.0, rate=1e-3, betas=(0.9, 0.999), eps=1e-8, amsgrad=False):
    def update(parameters, gradients, states, step, lr):
        adam(parameters, gradients, *states[:2], states[2] if amsgrad else [], [step] * len(parameters), foreach=False,
                              differentiable=True, amsgrad=amsgrad, beta1=betas[0], beta2=betas[1], lr=rate if lr is None else lr,
                              weight_decay=weight_decay, eps=eps, maximize=False, decoupled_weight_decay=decoupled)

    return update, 3 if amsgrad else 2


def clipped(gradients):
    norm = torch.sqrt(sum((value * value).sum() for value in gradients))
    return [value * torch.clamp(1.0 / (norm + 1e-6), max=1.0) for value in gradients]


class Flat(torch.nn.Module):
    """A traced step of inputs alone, or whose first ones are weights of the file."""

    def __init__(self, traced, weights=()):
        super().__init__()
        self.traced = traced
        for i, value in enumerate(weights):
            self.register_parameter(f"weight_{i}", torch.nn.Parameter(value))

    def forward(self, *arguments):
        return self.traced(*self.parameters(), *arguments)


def optimizer_step(name, optimizer, loss_of=cross_entropy, groups=None, prepare=lambda gradients: gradients, lr_input=False, inside=False):
    """Inputs: weights (if not inside the file), states kind by kind, the step if the optimizer counts, the learning rate if asked for, batch."""
    (update, kinds), model = optimizer, TwoLayers()
    count = len(trained_names(model))
    gradients_step = gradients_of(model, loss_of)
    counts = kinds >= 2

    def step(*arguments):
        rest = list(arguments)
        weights = [rest.pop(0).clone() for _ in range(count)]
        states = [[rest.pop(0).clone() for _ in range(count)] for _ in range(kinds)]
        number = rest.pop(0).clone() if counts else None
        lr = rest.pop(0) if lr_input else None
        loss, gradients, _ = gradients_step(*rest, *weights)
        gradients = prepare(list(gradients.values()))
        if groups is None:
            steps = [number.clone() for _ in weights] if counts else None
            one_by_one(update, weights, gradients, states, steps, lr)
        else:
            steps = [number.clone() for _ in weights] if counts else None
            for chosen, of_group in groups:
                pick = [i for i, key in enumerate(trained_names(model)) if chosen in key]
                one_by_one(of_group[0], [weights[i] for i in pick], [gradients[i] for i in pick],
                           [[kind[i] for i in pick] for kind in states], [steps[i] for i in pick] if counts else None, lr)
        return (loss, *weights, *(value for kind in states for value in kind), *([number + 1] if counts else []))

    arguments = [*values_of(model), *(torch.zeros_like(value) for _ in range(kinds) for value in values_of(model))]
    arguments += [torch.tensor(0.0)] if counts else []
    arguments += [torch.tensor(0.1)] if lr_input else []
    arguments += list(inputs_of())
    traced = trace(step, *arguments)
    weights = arguments[:count] if inside else []
    arguments = arguments[len(weights):]
    total = len(arguments)
    inputs = [f"input_{i}" for i in range(total)]
    proto = export(Flat(traced, weights), tuple(arguments), inputs, [f"output_{i}" for i in range(1 + count * (1 + kinds) + counts)],
                   batched=(total - 2, total - 1))
    save(proto, name)


def one_by_one(update, weights, gradients, states, steps, lr):
    for i, weight in enumerate(weights):
        update([weight], [gradients[i]], [[kind[i]] for kind in states], steps[i] if steps else None, lr)


FORMS = {
    "joint": lambda name: joint(name, Perceptron()),
    "joint_inputs": lambda name: joint_inputs(name, Perceptron()),
    "joint_frozen": lambda name: joint(name, Perceptron(frozen=["scale", "second.weight", "second.bias"])),
    "joint_decay": lambda name: joint(name, Perceptron(), decayed_cross_entropy),
    "joint_running": lambda name: joint(name, Normalised(), buffers=["norm.running_mean", "norm.running_var"], mode="real"),
    "ort_training": ort_training,
    "ort_training_frozen": lambda name: ort_training(name, frozen=["fc1.weight", "fc2.bias"]),
    "ort_eval": ort_eval,
    "ort_optimizer": ort_optimizer,
    "training_operators": training_operators,
    "step_sgd": lambda name: optimizer_step(name, sgd_step(weight_decay=0.01)),
    "step_sgd_rate": lambda name: optimizer_step(name, sgd_step(), lr_input=True),
    "step_momentum": lambda name: optimizer_step(name, sgd_step(momentum=0.9)),
    "step_nesterov": lambda name: optimizer_step(name, sgd_step(momentum=0.8, nesterov=True, weight_decay=1e-4, rate=0.05)),
    "step_adam": lambda name: optimizer_step(name, adam_step(False, weight_decay=0.02, betas=(0.8, 0.99))),
    "step_adamw": lambda name: optimizer_step(name, adam_step(True, weight_decay=0.01)),
    "step_adamw_inside": lambda name: optimizer_step(name, adam_step(True, weight_decay=0.01), inside=True),
    "step_amsgrad": lambda name: optimizer_step(name, adam_step(False, amsgrad=True)),
    "step_clipped": lambda name: optimizer_step(name, sgd_step(), prepare=clipped),
    "step_groups": lambda name: optimizer_step(name, adam_step(True), groups=[("weight", adam_step(True, 0.01)), ("bias", adam_step(True))]),
}


def main():
    for name in sys.argv[1:] or FORMS:
        torch.manual_seed(0)
        FORMS[name](name)


if __name__ == "__main__":
    main()
