"""Cases of make_lowering_cases.py: layers of networks, what draws at random, and optimizers."""
import itertools

import numpy as np

from make_lowering_cases import PREVIEW, Case, Given, Real, Whole, by_runtime

F16, F32, F64 = np.float16, np.float32, np.float64
I32, I64 = np.int32, np.int64
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(op_type, *, steps=4, batch=3, size=2, hidden=3, bias=True, lengths=None, states=True, peepholes=False, **more):
    directions = 2 if more.get("direction") == "bidirectional" else 1
    rows = GATES[op_type] * hidden
    first = (batch, steps) if more.get("layout") else (steps, batch)
    state = (batch, directions, hidden) if more.get("layout") else (directions, batch, hidden)
    inputs = [Real(*first, size), Real(directions, rows, size), Real(directions, rows, hidden),
              Real(directions, 2 * rows) if bias else None, Given(lengths, I32) if lengths else None,
              Real(*state) if states else None]
    if op_type == "LSTM":
        inputs += [Real(*state) if states else None, Real(directions, 3 * hidden) if peepholes else None]
    while inputs[-1] is None:
        inputs.pop()
    plain = op_type != "LSTM" and not lengths and more.get("direction", "forward") == "forward"
    if plain and not {"activations", "clip", "layout"} & more.keys() and (op_type, more.get("opset")) != ("RNN", 7):
        more.update(judge="reference", why="")
    return Case(op_type, inputs, outputs=3 if op_type == "LSTM" else 2, hidden_size=hidden, **more)


def steps_first(op_type, more):
    """What ONNX Runtime gives with the batch as axis 1, put where layout 1 has it."""
    def compute(x, *others):
        given = [Given(x.swapaxes(0, 1))]
        for i, other in enumerate(others):
            given.append(None if other is None else Given(other.swapaxes(0, 1) if i >= 4 and other.ndim == 3 else other))
        case = Case(op_type, given, outputs=3 if op_type == "LSTM" else 2, opset=22, hidden_size=3, **more).place(0)
        y, *last = by_runtime(case)[0]
        return [y.transpose(2, 0, 1, 3)] + [state.swapaxes(0, 1) for state in last]
    return compute


def recurrent_layers():
    fewer = dict(judge="runtime", why="the reference knows one direction, whole sequences and default activations, and lacks Y_c")
    layout = "the reference mistakes steps for examples, ONNX Runtime refuses layout 1"
    for op_type in GATES:
        for opset, direction in itertools.product((7, 14, 22), ("forward", "reverse", "bidirectional")):
            yield recurrent(op_type, opset=opset, direction=direction, **fewer)
            yield recurrent(op_type, opset=opset, direction=direction, lengths=[4, 1, 3], **fewer)
        yield recurrent(op_type, direction="bidirectional", lengths=[2, 4, 3], constant=(4,), states=False, **fewer)
        yield recurrent(op_type, states=False, bias=False, **fewer)
        yield recurrent(op_type, steps=1, batch=1, hidden=1, size=1, **fewer)
        yield recurrent(op_type, batch=1, direction="bidirectional", **fewer)
        yield recurrent(op_type, clip=0.4, **fewer)
        if op_type != "RNN":  # of an empty sequence ONNX Runtime's RNN gives what its memory holds
            yield recurrent(op_type, direction="bidirectional", lengths=[0, 4, 2], **fewer)
            yield recurrent(op_type, lengths=[0, 4, 2], states=False, **fewer)
        empty = [np.zeros((4, 1, 0, 3))] + [np.zeros((1, 0, 3))] * (2 if op_type == "LSTM" else 1)
        yield recurrent(op_type, batch=0, bias=False, judge="formula", why="the reference has no Y_c, or a Y_h without directions",
                        expect=lambda *inputs, empty=empty: empty, never_runtime="ends by a signal where the batch is empty")
        for direction in ("forward", "bidirectional"):
            more = dict(direction=direction)
            yield recurrent(op_type, layout=1, judge="formula", why=layout, expect=steps_first(op_type, more), single=True, **more)
    for direction, lengths in itertools.product(("forward", "bidirectional"), (None, [3, 4, 2])):
        yield recurrent("LSTM", peepholes=True, direction=direction, lengths=lengths, **fewer)
    yield recurrent("LSTM", peepholes=True, states=False, bias=False, **fewer)
    yield recurrent("LSTM", input_forget=1, **fewer)
    yield recurrent("LSTM", input_forget=1, peepholes=True, clip=0.5, **fewer)
    yield recurrent("LSTM", activations=["HardSigmoid", "Relu", "Softsign"], **fewer)
    yield recurrent("LSTM", activations=["Sigmoid", "LeakyRelu", "Tanh"], activation_alpha=[0.3], **fewer)
    yield recurrent("LSTM", direction="bidirectional", activations=["HardSigmoid", "Elu", "Tanh", "Sigmoid", "ScaledTanh", "Affine"],
                    activation_alpha=[0.3, 0.9, 1.2, 0.8], activation_beta=[0.4, 0.7, 0.1], **fewer)
    for direction, lengths in itertools.product(("forward", "bidirectional"), (None, [3, 4, 2])):
        yield recurrent("GRU", linear_before_reset=1, direction=direction, lengths=lengths, **fewer)
    yield recurrent("GRU", linear_before_reset=1, states=False, **fewer)
    yield recurrent("GRU", linear_before_reset=1, bias=False, **fewer)
    yield recurrent("GRU", activations=["HardSigmoid", "Softplus"], activation_alpha=[0.25], activation_beta=[0.4], **fewer)
    yield recurrent("GRU", activations=["HardSigmoid", "Elu"], **fewer)
    yield recurrent("LSTM", activations=["HardSigmoid", "LeakyRelu", "Elu"], **fewer)
    for activation in ("Relu", "Sigmoid", "Softplus", "Softsign"):
        yield recurrent("RNN", activations=[activation], **fewer)
    yield recurrent("RNN", activations=["HardSigmoid"], activation_alpha=[0.3], activation_beta=[0.4], **fewer)
    for activation in ("Elu", "LeakyRelu"):
        yield recurrent("RNN", activations=[activation], activation_alpha=[0.3], **fewer)
    yield recurrent("RNN", activations=["ThresholdedRelu"], activation_alpha=[0.2], **fewer)
    yield recurrent("RNN", direction="bidirectional", activations=["Affine", "ScaledTanh"], activation_alpha=[0.8, 1.2],
                    activation_beta=[0.1, 0.7], **fewer)


def normalizations():
    for opset in (6, 22):
        for shape in ((2, 3, 4), (2, 3, 4, 5), (1, 2, 2, 3, 2)):
            yield Case("InstanceNormalization", [Real(*shape), Real(shape[1]), Real(shape[1])], opset=opset)
        yield Case("InstanceNormalization", [Real(2, 1, 3, 3), Real(1), Real(1)], opset=opset, epsilon=0.01)
    yield Case("InstanceNormalization", [Real(1, 3, 1, 1), Real(3), Real(3)])
    yield Case("InstanceNormalization", [Real(0, 3, 2, 2), Real(3), Real(3)])
    for opset in (9, 13):
        yield Case("MeanVarianceNormalization", [Real(2, 3, 4, 5, dtype=F32)], opset=opset)
        yield Case("MeanVarianceNormalization", [Real(2, 3, 4, dtype=F32)], opset=opset, axes=[1, -1])
        yield Case("MeanVarianceNormalization", [Real(2, 3, 4)], opset=opset, axes=[0, -1], judge="runtime",
                   why="the reference's body has constants of float32")
    yield Case("GroupNormalization", [Real(2, 6, 3, 4), Real(6), Real(6)], opset=21, num_groups=3)
    yield Case("GroupNormalization", [Real(2, 4, 5), Real(4), Real(4)], num_groups=1, epsilon=0.01)
    yield Case("GroupNormalization", [Real(1, 4, 2, 2, 2), Real(4), Real(4)], num_groups=4)
    yield Case("GroupNormalization", [Real(2, 6, 3, 4), Real(3), Real(3)], opset=18, num_groups=3)
    for shape, axis in (((2, 3, 4), -1), ((2, 3, 4), 1), ((4,), 0)):
        yield Case("RMSNormalization", [Real(*shape), Real(*shape[axis % len(shape):])], opset=23, axis=axis)
    yield Case("RMSNormalization", [Real(2, 4), Real(4)], opset=23, epsilon=0.1)


def attentions():
    table = [Real(5, 4), Real(5, 4)]
    place = Given([[0, 1, 2], [1, 3, 4]], I64)
    yield Case("RotaryEmbedding", [Real(2, 3, 3, 8), *table, place], opset=23)
    yield Case("RotaryEmbedding", [Real(2, 3, 3, 8), *table, place], opset=23, interleaved=1)
    yield Case("RotaryEmbedding", [Real(2, 3, 24), *table, place], opset=23, num_heads=3)
    yield Case("RotaryEmbedding", [Real(2, 3, 3, 8), Real(2, 3, 4), Real(2, 3, 4)], opset=23)
    yield Case("RotaryEmbedding", [Real(2, 3, 3, 8), Real(5, 2), Real(5, 2), place], opset=23, rotary_embedding_dim=4)
    heads = lambda sequence, count=2: Real(2, count, sequence, 4)
    qkv = [heads(3), heads(5), heads(5)]
    yield Case("Attention", qkv, opset=23)
    yield Case("Attention", qkv, opset=23, is_causal=1)
    yield Case("Attention", qkv, opset=23, scale=0.3, softcap=2.0)
    yield Case("Attention", qkv + [Real(3, 5)], opset=23)
    yield Case("Attention", qkv + [Given(np.tril(np.ones((3, 5))) > 0)], opset=23)
    yield Case("Attention", qkv + [Real(2, 1, 3, 5)], opset=23)
    yield Case("Attention", [heads(3, 4), heads(5), heads(5)], opset=23, why="ONNX Runtime gives neighbouring heads different groups")
    flat = "ONNX Runtime cuts three axes into heads as if they came first"
    yield Case("Attention", [Real(2, 3, 8), Real(2, 5, 8), Real(2, 5, 8)], opset=23, q_num_heads=2, kv_num_heads=2, why=flat)
    yield Case("Attention", [Real(2, 3, 8), Real(2, 5, 4), Real(2, 5, 4)], opset=23, q_num_heads=2, kv_num_heads=1, why=flat)


def random_numbers():
    """Where what is drawn can have one value alone. Distributions: tests/onnx_import/lowering/random_operators_test.cc."""
    for opset in (1, 22):
        yield Case("RandomUniform", [], opset=opset, shape=[2, 3], low=0.75, high=0.75)
        yield Case("RandomUniform", [], opset=opset, shape=[4], low=-2.0, high=-2.0, dtype=11)
        yield Case("RandomUniform", [], opset=opset, shape=[2, 0], dtype=10)
        yield Case("RandomUniformLike", [Real(2, 3)], opset=opset, low=1.5, high=1.5)
        yield Case("RandomUniformLike", [Whole(2, 3)], opset=opset, low=1.5, high=1.5, dtype=1)
        more = dict(opset=opset, scale=0.0, never_runtime="ends by a signal where the scale is 0")
        yield Case("RandomNormal", [], shape=[2, 3], mean=0.75, **more)
        yield Case("RandomNormal", [], shape=[1], mean=-0.5, dtype=11, **more)
        yield Case("RandomNormalLike", [Real(3, 1, 2)], mean=1.5, **more)
        yield Case("RandomNormalLike", [Whole(2, 3)], mean=1.5, dtype=10, **more)
    for opset in (15, 22):
        why = "ONNX Runtime draws 0 with the probability that is given" if opset == 15 else ""
        yield Case("Bernoulli", [Given([[0., 1., 1.], [1., 0., 0.]])], opset=opset, why=why)
        yield Case("Bernoulli", [Given([0., 1., 1., 0.])], opset=opset, dtype=9, why=why)
        yield Case("Bernoulli", [Given([[0., 1.]], F32)], opset=opset, dtype=7, why=why)
        yield Case("Bernoulli", [Real(0, 3)], opset=opset)
        yield Case("Bernoulli", [Given(np.ones((200, 100)), F16)], opset=opset, why=why)
    sure = [[-1e4, 0., -1e4, -1e4], [-1e4, -1e4, -1e4, 50.], [300., 0., -1., 2.]]
    for opset, more in ((7, dict(judge="runtime", why="the reference has no Multinomial")),
                        (22, dict(judge="formula", why="neither has Multinomial of opset 22"))):
        greatest = lambda size: {"expect": lambda x: [x.argmax(1)[:, None].repeat(size, 1)]} if opset == 22 else {}
        yield Case("Multinomial", [Given(sure, F32)], opset=opset, sample_size=5, **greatest(5), **more)
        yield Case("Multinomial", [Given(sure)], opset=opset, dtype=7, **greatest(1), **more)
        yield Case("Multinomial", [Real(2, 1)], opset=opset, sample_size=2, dtype=7, **greatest(2), **more)
    yes, no = Given(True, np.bool_), Given(False, np.bool_)
    for opset in (12, 13, 22):
        more = dict(opset=opset, constant=(1, 2))
        yield Case("Dropout", [Real(2, 3), Given(0., F32), yes], outputs=2, **more)
        yield Case("Dropout", [Given(np.zeros((2, 3))), Given(0.4, F32), yes], seed=1, **more)
        yield Case("Dropout", [Given(np.zeros((2, 3))), None, yes], opset=opset, constant=(2,), judge="runtime",
                   why="the reference refuses a ratio that is left out")
        yield Case("Dropout", [Real(2, 3), Given(0.4, F32), no], outputs=2, **more)
    yield Case("Dropout", [Real(2, 3)], opset=7, ratio=0.3)
    yield Case("Dropout", [Real(2, 3)], opset=6, ratio=0.3, is_test=1, judge="formula", why="neither has Dropout of opset 6",
               expect=lambda x: [x])
    yield Case("Dropout", [Real(2, 0)], opset=13, outputs=2)


def optimizers():
    def updated(op_type, states, shapes=((3, 2),), steps=0, **more):
        groups = 2 + states
        low = {"Adam": 0.0, "Adagrad": 0.0}.get(op_type, -1.0)
        inputs = [Given(0.1), Given(steps, I64)]
        inputs += [Real(*shape, low=low if group >= 2 else -1.0) for group in range(groups) for shape in shapes]
        return Case(op_type, inputs, outputs=(1 + states) * len(shapes), opset=1, domain=PREVIEW, **more)

    for steps in (0, 3):
        for more in ({}, {"norm_coefficient": 0.1}):
            yield updated("Momentum", 1, steps=steps, mode="standard", alpha=0.9, beta=0.8, **{"norm_coefficient": 0.0, **more})
            yield updated("Momentum", 1, steps=steps, mode="nesterov", alpha=0.9, beta=0.8, **{"norm_coefficient": 0.01, **more})
            yield updated("Adagrad", 1, steps=steps, decay_factor=0.1, epsilon=1e-5, **more)
            yield updated("Adam", 2, steps=steps, alpha=0.8, beta=0.9, epsilon=1e-5, **more)
    yield updated("Adam", 2, steps=2, norm_coefficient_post=0.1)
    for op_type, states in (("Momentum", 1), ("Adagrad", 1), ("Adam", 2)):
        more = dict(mode="standard", alpha=0.9, beta=0.8, norm_coefficient=0.0) if op_type == "Momentum" else {}
        yield updated(op_type, states, shapes=((3,), (2, 2)), steps=1, **more)
        yield updated(op_type, states, shapes=((),), **more)


def cases():
    for family in (recurrent_layers, normalizations, attentions, random_numbers, optimizers):
        yield from family()
