"""Checks the emitted files of a plan directory with ONNX's checker and runs them in ONNX Runtime.

Usage: emitted_files.py PLAN DUMP DATA.npz

PLAN was written by `pipeshard plan`, and `pipeshard validate PLAN --steps 1 --data DATA.npz --dump DUMP` left its tensors
in DUMP. Every microbatch's forward and backward subgraphs of all ranks run in ONNX Runtime; values travel between ranks by
name. The sums over microbatches must equal the dumped loss and gradients, and the original model on the whole batch must
give the same loss. A batch normalisation in training mode sees one microbatch: such a model's loss is the mean of what the
original gives for each microbatch, and what the original makes of its running statistics must lead to the dumped ones.
"""

import json
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime

from kind_file import read_kind

FLOAT32_BOUND = 1e-5


def read_safetensors(path):
    raw = path.read_bytes()
    header_bytes = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + header_bytes])
    types = {"F32": np.float32, "F64": np.float64, "I64": np.int64}
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        data = raw[8 + header_bytes + begin:8 + header_bytes + end]
        tensors[name] = np.frombuffer(data, types[entry["dtype"]]).reshape(entry["shape"])
    return tensors


class Rank:
    """The subgraphs of one rank, which has a kind of its own, as ONNX Runtime sessions."""

    def __init__(self, plan_folder, kind):
        self.program = read_kind(plan_folder / "kinds" / f"{kind:04}.json")
        self.sessions = {}
        for subgraph in self.program["subgraphs"]:
            path = plan_folder / "subgraphs" / subgraph["file"]
            onnx.checker.check_model(onnx.load(path), full_check=True)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            options.log_severity_level = 3
            self.sessions[subgraph["name"]] = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])

    def run(self, phase, values):
        session = self.sessions.get(phase)
        if session is None:
            return
        # A matrix of queries, keys and values has one axis in the model and in dumps, and two in subgraphs.
        feeds = {value.name: np.reshape(values[value.name], value.shape) for value in session.get_inputs()}
        names = [value.name for value in session.get_outputs()]
        values.update(zip(names, session.run(names, feeds)))


def relative_error(got, want, all_norm, all_size):
    floor = 1e-4 * all_norm * np.sqrt(want.size / all_size)
    return np.linalg.norm(got.astype(np.float64).reshape(want.shape) - want) / max(np.linalg.norm(want), floor, 1e-300)


def initial_weights(model_path):
    model = onnx.load(model_path)
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


def handed_on(program):
    """(state, name of the value that replaces it) for every forward state."""
    buffers = program["buffers"]
    return {(buffers[i["outputs"][0]]["value"], buffers[i["inputs"][0]]["value"]) for i in program["instructions"]
            if i["kind"] == "accumulate" and buffers[i["outputs"][0]]["kind"] == "forward_state"}


def accumulator_parts(program):
    """(kind of the accumulator, its value, name of the part) for every sum over microbatches."""
    buffers = program["buffers"]
    parts = set()
    for instruction in program["instructions"]:
        if instruction["kind"] == "accumulate" and buffers[instruction["outputs"][0]]["kind"] == "forward_state":
            continue
        if instruction["kind"] == "accumulate" and instruction.get("microbatch", -1) >= 0:
            source = buffers[instruction["inputs"][0]]["name"].split("@")[0]
            target = buffers[instruction["outputs"][0]]
            parts.add((target["kind"], target["value"], source))
    return sorted(parts)


class Original:
    """The model that was planned, in ONNX Runtime."""

    def __init__(self, path, loss):
        self.model = onnx.load(path)
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.loss = loss
        self.states = {}  # from the initializer to (output, momentum)
        outputs = {value.name for value in self.model.graph.output}
        self.normalizes = False
        for node in self.model.graph.node:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            if node.op_type != "BatchNormalization" or attributes.get("training_mode", 0) == 0:
                continue
            self.normalizes = True
            for state, updated in zip(node.input[3:5], node.output[1:3]):
                if updated in outputs:
                    self.states[state] = (updated, attributes.get("momentum", 0.9))

    def run(self, batch):
        names = [output for output, _ in self.states.values()]
        feeds = {value.name: batch[value.name] for value in self.session.get_inputs()}
        loss, *updated = self.session.run([self.loss] + names, feeds)
        return float(loss), dict(zip(self.states, updated))


def expected(original, weights, batch, microbatches):
    """The loss, and the running statistics after all microbatches in turn."""
    if not original.normalizes:
        return original.run(batch)[0], {}
    assert all(np.all(array >= 0) for array in batch.values() if array.dtype == np.int64), "ignored labels: a mean of means is no mean"
    states = {state: weights[state].astype(np.float64) for state in original.states}
    losses = []
    for microbatch in microbatches:
        loss, updated = original.run(microbatch)  # which starts from the file's statistics, not from the microbatch before
        losses.append(loss)
        for state, (_, momentum) in original.states.items():
            states[state] = updated[state] + momentum * (states[state] - weights[state])
    return float(np.mean(losses)), states


def main(plan_folder, dump_folder, data_path):
    plan = json.loads((plan_folder / "plan.json").read_text())
    onnx.checker.check_model(onnx.load(plan_folder / "model.onnx"), full_check=True)
    weights = initial_weights(plan["model"])
    bindings = json.loads((plan_folder / "ranks.json").read_text())["whole"]["bindings"]
    ranks = [Rank(plan_folder, binding["kind"]) for binding in bindings]
    count = ranks[0].program["microbatches"]
    batch = dict(np.load(data_path))
    axes = {entry["name"]: entry["axis"] for entry in ranks[0].program["inputs"]}

    def microbatch(k):
        return {name: array if axes[name] < 0 else np.split(array, count, axes[name])[k] for name, array in batch.items() if name in axes}

    totals = {}
    for rank in ranks:
        for kind, target, source in accumulator_parts(rank.program):
            if "prologue" not in rank.sessions or source not in [value.name for value in rank.sessions["prologue"].get_outputs()]:
                continue
            total = 0
            for k in range(count):
                values = {**weights, **microbatch(k)}
                rank.run("prologue", values)
                total = np.asarray(total + values[source])
            totals[target] = total
    got = {}
    states = {}
    for k in range(count):
        values = {**weights, **totals, **states, **microbatch(k)}
        for rank in ranks:
            rank.run("forward", values)
        for rank in reversed(ranks):
            for name in ("backward", "backward_input", "backward_weight"):
                rank.run(name, values)
        states = {state: values[updated] for rank in ranks for state, updated in handed_on(rank.program)}
        for kind, target, source in sorted({entry for rank in ranks for entry in accumulator_parts(rank.program)}):
            if source in values:
                name = "gradient/" + target.removesuffix(".gradient") if kind == "gradient" else target
                got[name] = got.get(name, 0) + values[source].astype(np.float64)

    dumped = {}
    for path in sorted(dump_folder.rglob("*.safetensors")):
        for name, tensor in read_safetensors(path).items():
            if name.startswith(("gradient/", "forward_state/")) or name == "loss":
                dumped[name] = tensor
    gradients = {name: tensor for name, tensor in dumped.items() if name.startswith("gradient/")}
    assert len(gradients) > 0, "the dump holds no gradients"
    norm = np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in gradients.values()))
    size = sum(g.size for g in gradients.values())
    worst = max((relative_error(got[name], tensor.astype(np.float64), norm, size), name) for name, tensor in gradients.items())
    loss = float(got["loss"])
    original = Original(plan["model"], plan["loss"])
    reference, reference_states = expected(original, weights, batch, [microbatch(k) for k in range(count)])
    print(f"loss: emitted files in ONNX Runtime {loss:.9g}, original model in ONNX Runtime {reference:.9g}, "
          f"pipeshard {float(dumped['loss']):.9g}; worst gradient {worst[1]} {worst[0]:.2e}")
    assert abs(loss - reference) <= FLOAT32_BOUND * abs(reference)
    assert abs(float(dumped["loss"]) - reference) <= FLOAT32_BOUND * abs(reference)
    assert worst[0] <= FLOAT32_BOUND, worst
    dumped_states = {name.removeprefix("forward_state/"): t for name, t in dumped.items() if name.startswith("forward_state/")}
    assert dumped_states.keys() == reference_states.keys() == states.keys()
    for name, want in reference_states.items():
        for what, tensor in (("emitted files", states[name]), ("pipeshard", dumped_states[name])):
            error = np.linalg.norm(tensor - want) / np.linalg.norm(want)
            assert error <= FLOAT32_BOUND, (what, name, error)
    if states:
        print(f"{len(states)} running statistics: emitted files, original model and pipeshard agree")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
