#!/usr/bin/env python3
"""Models with a TrainingInfoProto, made and looked at with onnx and numpy alone (tests/requirements.txt).

    make_training_info.py                writes tests/golden/forms/training_info_*.onnx, each with the numbers of two
                                         steps beside it, and forward.onnx, which described_*.onnx are made of
    make_training_info.py check FILE...  the checker of onnx accepts model and training step, and its reference
                                         evaluator, given gradients by numpy, takes the steps that the name says
"""

import pathlib
import sys

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

OUTPUT = pathlib.Path(__file__).resolve().parents[1] / "golden" / "forms"
PREVIEW = "ai.onnx.preview.training"
OPSETS = [helper.make_opsetid("", 18), helper.make_opsetid(PREVIEW, 1)]
WEIGHTS = {"w1": (4, 5), "b1": (5,), "w2": (5, 3), "b2": (3,)}
BATCH, STEPS = 6, 2


# ---- what numpy knows: a network of two layers, and optimizers as PyTorch defines them


def initial():
    random = numpy.random.default_rng(1)
    return {name: (random.standard_normal(shape) * 0.5).astype(numpy.float32) for name, shape in WEIGHTS.items()}


def batch():
    random = numpy.random.default_rng(2)
    return {"x": random.standard_normal((BATCH, 4)).astype(numpy.float32), "labels": random.integers(0, 3, BATCH)}


def loss_and_gradients(weights, data):
    w1, b1, w2, b2 = (weights[name].astype(numpy.float64) for name in WEIGHTS)
    x, rows = data["x"].astype(numpy.float64), numpy.arange(BATCH)
    hidden = numpy.maximum(x @ w1 + b1, 0)
    scores = hidden @ w2 + b2
    exponents = numpy.exp(scores - scores.max(1, keepdims=True))
    probabilities = exponents / exponents.sum(1, keepdims=True)
    loss = -numpy.log(probabilities[rows, data["labels"]]).mean()
    probabilities[rows, data["labels"]] -= 1
    scores_gradient = probabilities / BATCH
    hidden_gradient = scores_gradient @ w2.T * (hidden > 0)
    return loss, {"w1": x.T @ hidden_gradient, "b1": hidden_gradient.sum(0), "w2": hidden.T @ scores_gradient,
                  "b2": scores_gradient.sum(0)}


def sgd(w, g, state, t, lr=0.1, momentum=0.0, decay=0.0, nesterov=False):
    g = g + decay * w
    v = state["v"] = momentum * state.get("v", 0) + g
    return w - lr * (g + momentum * v if nesterov else v)


def adam(w, g, state, t, lr=0.01, b1=0.9, b2=0.999, eps=1e-8, decay=0.0, decoupled=False):
    if decoupled:
        w = w * (1 - lr * decay)
    else:
        g = g + decay * w
    m = state["m"] = b1 * state.get("m", 0) + (1 - b1) * g
    v = state["v"] = b2 * state.get("v", 0) + (1 - b2) * g * g
    return w - lr / (1 - b1**t) * m / (numpy.sqrt(v) / numpy.sqrt(1 - b2**t) + eps)


OPTIMIZERS = {
    "sgd": lambda *update: sgd(*update, decay=0.01),
    "momentum": lambda *update: sgd(*update, momentum=0.9),
    "nesterov": lambda *update: sgd(*update, momentum=0.8, decay=0.001, nesterov=True),
    "adam": lambda *update: adam(*update, b1=0.8, decay=0.02),
    "adamw": lambda *update: adam(*update, decay=0.1, decoupled=True),
}


def trained(optimizer, steps=STEPS):
    """Loss of the first step, and the weights after each."""
    weights, states, losses, after = initial(), {name: {} for name in WEIGHTS}, [], []
    for t in range(1, steps + 1):
        loss, gradients = loss_and_gradients(weights, batch())
        weights = {name: OPTIMIZERS[optimizer](weights[name].astype(numpy.float64), gradients[name], states[name], t) for name in WEIGHTS}
        losses.append(loss)
        after.append(weights)
    return losses[0], after


# ---- models


def tensor(name, values, dtype=numpy.float32):
    return numpy_helper.from_array(numpy.asarray(values, dtype=dtype), name)


def value(name, shape, element=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, element, shape)


def forward_nodes():
    return [helper.make_node("Gemm", ["x", "w1", "b1"], ["sums"], name="first"), helper.make_node("Relu", ["sums"], ["hidden"]),
            helper.make_node("Gemm", ["hidden", "w2", "b2"], ["scores"], name="second")]


def loss_node():
    return helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"], reduction="mean")


def gradient_node(weights, outputs):
    return helper.make_node("Gradient", [*weights, "x", "labels"], outputs, domain=PREVIEW, xs=list(weights), zs=["x", "labels"], y="loss")


def inference_graph(loss=False):
    inputs = [value("x", ["batch", 4])] + ([value("labels", ["batch"], TensorProto.INT64)] if loss else [])
    outputs = [value("scores", ["batch", 3])] + ([value("loss", [])] if loss else [])
    weights = [tensor(name, content) for name, content in initial().items()]
    return helper.make_graph(forward_nodes() + ([loss_node()] if loss else []), "inference", inputs, outputs, weights)


def bind(entries, pairs):
    for key, target in pairs.items():
        entry = entries.add()
        entry.key, entry.value = key, target


def training_info(nodes, initializers, updates, labels=True, initialization=None, initial_values=None):
    """`updates`: of initializers of the model or of the algorithm, whose types the outputs have."""
    own = {item.name: item for item in initializers}
    inputs = [value("labels", ["batch"], TensorProto.INT64)] if labels else []
    outputs = [value("loss", [])] if labels else []
    for name, target in updates.items():
        element = own[name].data_type if name in own else TensorProto.FLOAT
        outputs.append(value(target, list(own[name].dims) if name in own else WEIGHTS[name.removeprefix("g_")], element))
    info = onnx.TrainingInfoProto()
    info.algorithm.CopyFrom(helper.make_graph(nodes, "algorithm", inputs, outputs, initializers))
    bind(info.update_binding, updates)
    if initialization is not None:
        info.initialization.CopyFrom(initialization)
        bind(info.initialization_binding, initial_values)
    return info


def save(name, infos, graph=None):
    model = helper.make_model(graph or inference_graph(), ir_version=8, opset_imports=OPSETS)
    model.training_info.extend(infos)
    check(model)
    onnx.save(model, OUTPUT / f"{name}.onnx")


def save_numbers(name, optimizer):
    """Batch, loss and weights after each step, as initializers of a model without nodes."""
    loss, after = trained(optimizer)
    data = [tensor("x", batch()["x"]), tensor("labels", batch()["labels"], numpy.int64), tensor("loss", loss)]
    data += [tensor(f"{weight}.{step + 1}", content) for step, weights in enumerate(after) for weight, content in weights.items()]
    graph = helper.make_graph([], "data", [], [], data)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=OPSETS[:1]), OUTPUT / f"{name}_data.onnx")
    check_steps(OUTPUT / f"{name}.onnx", optimizer)


def momentum():
    """One Momentum operator for all weights; the loss in the algorithm; weights drawn by `initialization`."""
    gradients, states = [f"d_{name}" for name in WEIGHTS], [f"v_{name}" for name in WEIGHTS]
    new_weights, new_states = [f"new_{name}" for name in WEIGHTS], [f"new_v_{name}" for name in WEIGHTS]
    nodes = [loss_node(), gradient_node(WEIGHTS, gradients),
             helper.make_node("Momentum", ["R", "T", *WEIGHTS, *gradients, *states], [*new_weights, *new_states], domain=PREVIEW, alpha=0.8,
                              beta=1.0, mode="nesterov", norm_coefficient=0.001),
             helper.make_node("Add", ["T", "one"], ["new_T"])]
    data = [tensor("R", 0.1), tensor("T", 0, numpy.int64), tensor("one", 1, numpy.int64)]
    data += [tensor(f"v_{name}", numpy.zeros(shape)) for name, shape in WEIGHTS.items()]
    draw = [helper.make_node("RandomNormal", [], [f"first_{name}"], shape=WEIGHTS[name], scale=0.5) for name in ("w1", "w2")]
    draw.append(helper.make_node("Constant", [], ["first_T"], value=tensor("", 0, numpy.int64)))
    initialization = helper.make_graph(draw, "initialization", [],
                                       [value("first_w1", [4, 5]), value("first_w2", [5, 3]), value("first_T", [], TensorProto.INT64)])
    updates = dict(zip([*WEIGHTS, *states, "T"], [*new_weights, *new_states, "new_T"]))
    save("training_info_momentum", [training_info(nodes, data, updates, initialization=initialization,
                                                  initial_values={"w1": "first_w1", "w2": "first_w2", "T": "first_T"})])
    save_numbers("training_info_momentum", "nesterov")


def adamw():
    """Plain operators, a Gradient for each weight, before the loss that it names."""
    nodes, updates = [], {"t": "new_t"}
    numbers = {"t": 0, "one": 1, "beta1": 0.9, "beta2": 0.999, "rest1": 0.1, "rest2": 0.001, "eps": 1e-8, "rate": 0.01, "kept": 1 - 0.01 * 0.1}
    data = [tensor(name, content) for name, content in numbers.items()]

    def node(op_type, left, right, output):
        nodes.append(helper.make_node(op_type, [name for name in (left, right) if name], [output]))
        return output

    for name in WEIGHTS:
        nodes.append(gradient_node([name], [f"d_{name}"]))
    node("Add", "t", "one", "new_t")
    first = node("Sub", "one", node("Pow", "beta1", "new_t", "power_1"), "correction_1")
    second = node("Sqrt", node("Sub", "one", node("Pow", "beta2", "new_t", "power_2"), "correction_2"), "", "root_2")
    for name, shape in WEIGHTS.items():
        def own(op_type, left, right, what, weight=name):
            return node(op_type, left, right, f"{weight}_{what}")

        gradient = f"d_{name}"
        m = own("Add", own("Mul", f"m_{name}", "beta1", "m_old"), own("Mul", gradient, "rest1", "m_add"), "m_new")
        square = own("Mul", gradient, gradient, "square")
        v = own("Add", own("Mul", f"v_{name}", "beta2", "v_old"), own("Mul", square, "rest2", "v_add"), "v_new")
        deviation = own("Add", own("Div", own("Sqrt", v, "", "root"), second, "deviation"), "eps", "divisor")
        direction = own("Div", own("Div", m, first, "mean"), deviation, "direction")
        own("Sub", own("Mul", name, "kept", "decayed"),
            own("Mul", direction, "rate", "stride"), "new")
        data += [tensor(f"m_{name}", numpy.zeros(shape)), tensor(f"v_{name}", numpy.zeros(shape))]
        updates |= {name: f"{name}_new", f"m_{name}": m, f"v_{name}": v}
    nodes.append(loss_node())
    save("training_info_adamw", [training_info(nodes, data, updates)])
    save_numbers("training_info_adamw", "adamw")


def two_steps():
    """Gradients are kept by the first TrainingInfoProto and used by the second; the loss is the model's."""
    gradients = {f"g_{name}": f"d_{name}" for name in WEIGHTS}
    first = training_info([gradient_node(WEIGHTS, list(gradients.values()))], [], gradients, labels=False)
    nodes = []
    for name in WEIGHTS:
        nodes += [helper.make_node("Mul", [name, "decay"], [f"pull_{name}"]),
                  helper.make_node("Add", [f"g_{name}", f"pull_{name}"], [f"sum_{name}"]),
                  helper.make_node("Mul", ["rate", f"sum_{name}"], [f"step_{name}"]),
                  helper.make_node("Sub", [name, f"step_{name}"], [f"new_{name}"])]
    second = training_info(nodes, [tensor("rate", 0.1), tensor("decay", 0.01)], {name: f"new_{name}" for name in WEIGHTS}, labels=False)
    graph = inference_graph(loss=True)
    graph.initializer.extend(tensor(f"g_{name}", numpy.zeros(shape)) for name, shape in WEIGHTS.items())
    save("training_info_two_steps", [first, second], graph)
    save_numbers("training_info_two_steps", "sgd")


def plain():
    """A backward pass of plain operators in the algorithm, without Gradient."""
    nodes = [loss_node(), helper.make_node("Softmax", ["scores"], ["likely"], axis=-1),
             helper.make_node("OneHot", ["labels", "classes", "off_on"], ["right"]), helper.make_node("Sub", ["likely", "right"], ["wrong"]),
             helper.make_node("Size", ["labels"], ["rows"]), helper.make_node("Cast", ["rows"], ["count"], to=TensorProto.FLOAT),
             helper.make_node("Div", ["wrong", "count"], ["d_scores"]),
             helper.make_node("Gemm", ["hidden", "d_scores"], ["d_w2"], transA=1),
             helper.make_node("ReduceSum", ["d_scores", "axis"], ["d_b2"], keepdims=0),
             helper.make_node("Gemm", ["d_scores", "w2"], ["d_hidden"], transB=1), helper.make_node("Greater", ["sums", "zero"], ["positive"]),
             helper.make_node("Cast", ["positive"], ["mask"], to=TensorProto.FLOAT), helper.make_node("Mul", ["d_hidden", "mask"], ["d_sums"]),
             helper.make_node("Gemm", ["x", "d_sums"], ["d_w1"], transA=1), helper.make_node("ReduceSum", ["d_sums", "axis"], ["d_b1"], keepdims=0)]
    data = [tensor("classes", 3, numpy.int64), tensor("off_on", [0, 1]), tensor("axis", [0], numpy.int64), tensor("zero", 0), tensor("rate", 0.1),
            tensor("momentum", 0.9)] + [tensor(f"v_{name}", numpy.zeros(shape)) for name, shape in WEIGHTS.items()]
    updates = {}
    for name in WEIGHTS:
        nodes += [helper.make_node("Mul", [f"v_{name}", "momentum"], [f"kept_{name}"]),
                  helper.make_node("Add", [f"kept_{name}", f"d_{name}"], [f"new_v_{name}"]),
                  helper.make_node("Mul", ["rate", f"new_v_{name}"], [f"step_{name}"]),
                  helper.make_node("Sub", [name, f"step_{name}"], [f"new_{name}"])]
        updates |= {name: f"new_{name}", f"v_{name}": f"new_v_{name}"}
    save("training_info_plain", [training_info(nodes, data, updates)])
    save_numbers("training_info_plain", "momentum")


# ---- looking at them


def step_model(model, info):
    """The training step as a model of its own, as TrainingInfoProto.algorithm defines it."""
    step = onnx.ModelProto()
    step.CopyFrom(model)
    del step.training_info[:]
    for field in ("node", "initializer", "input", "output", "value_info"):
        getattr(step.graph, field).extend(getattr(info.algorithm, field))
    return step


def check(model):
    onnx.checker.check_model(model)
    for info in model.training_info:
        step = step_model(model, info)
        sort_nodes(step.graph)
        onnx.checker.check_model(step)


def sort_nodes(graph):
    """A Gradient reads the weights, and may come before what it differentiates."""
    known = {item.name for item in [*graph.initializer, *graph.input]}
    left, done = list(graph.node), []
    while left:
        ready = [node for node in left if all(not name or name in known for name in node.input)]
        assert ready, f"a cycle, or names of nothing: {left[0]}"
        known.update(name for node in ready for name in node.output)
        done += ready
        left = [node for node in left if node not in ready]
    del graph.node[:]
    graph.node.extend(done)


def check_steps(path, optimizer):
    """Two steps by onnx's reference evaluator are numpy's."""
    model = onnx.load(path)
    check(model)
    loss, after = trained(optimizer)
    steps = [step_model(model, info) for info in model.training_info]
    content = {item.name: numpy_helper.to_array(item) for step in steps for item in step.graph.initializer}
    for number, weights in enumerate(after):
        for info, step in zip(model.training_info, steps):
            outputs = [entry.value for entry in info.update_binding]
            given = content | batch() | gradients_of(step.graph, content)
            wanted = outputs + (["loss"] if any(item.name == "loss" for item in step.graph.output) else [])
            results = dict(zip(wanted, evaluator_of(step).run(wanted, given)))
            assert number > 0 or abs(results.get("loss", loss) - loss) < 1e-6
            content |= {entry.key: results[entry.value] for entry in info.update_binding}
        for name in WEIGHTS:
            worst = numpy.abs(content[name] - weights[name]).max()
            assert worst < 2e-6, f"{path.name}: {name} is {worst} away from numpy's"
    print(f"{path.name}: two steps of {optimizer} are numpy's")


def gradients_of(graph, content):
    """What the Gradient operators of a step give."""
    found = {}
    for node in graph.node:
        if node.op_type == "Gradient":
            xs = next(attribute.strings for attribute in node.attribute if attribute.name == "xs")
            by_name = loss_and_gradients(content, batch())[1]
            found |= {output: by_name[x.decode()].astype(numpy.float32) for x, output in zip(xs, node.output)}
    return found


def evaluator_of(step):
    """Of all but the Gradient operators."""
    plain = onnx.ModelProto()
    plain.CopyFrom(step)
    sort_nodes(plain.graph)
    kept = [node for node in plain.graph.node if node.op_type != "Gradient"]
    del plain.graph.node[:]
    plain.graph.node.extend(kept)
    return ReferenceEvaluator(plain)


def check_described(path):
    """described_OPTIMIZER.onnx, with states from its initialization."""
    model = onnx.load(path)
    (info,) = model.training_info
    evaluator = ReferenceEvaluator(helper.make_model(info.initialization, opset_imports=OPSETS, ir_version=8))
    first = dict(zip((item.name for item in info.initialization.output), evaluator.run(None, {})))
    stored = {item.name: numpy_helper.to_array(item) for item in info.algorithm.initializer}
    for entry in info.initialization_binding:
        assert numpy.array_equal(first[entry.value], stored[entry.key]), entry.key
        assert first[entry.value].dtype == stored[entry.key].dtype, entry.key
    check_steps(path, path.stem.removeprefix("described_"))


def main():
    if sys.argv[1:2] == ["check"]:
        for path in sys.argv[2:]:
            check_described(pathlib.Path(path))
        return
    momentum()
    adamw()
    two_steps()
    plain()
    onnx.save(helper.make_model(inference_graph(loss=True), ir_version=8, opset_imports=OPSETS[:1]), OUTPUT / "forward.onnx")


if __name__ == "__main__":
    main()
