"""Checks the emitted files of a plan directory with ONNX's checker and runs them in ONNX Runtime.

Usage: emitted_files.py PLAN DUMP DATA.npz

PLAN was written by `pipeshard plan`, and `pipeshard validate PLAN --steps 1 --data DATA.npz --dump DUMP` left its tensors
in DUMP. Every microbatch's forward and backward subgraphs of all ranks run in ONNX Runtime; values travel between ranks by
name. The sums over microbatches must equal the dumped loss and gradients, and the original model on the whole batch must
give the same loss.
"""

import json
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime

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
    """One rank's subgraphs as ONNX Runtime sessions."""

    def __init__(self, folder):
        self.program = json.loads((folder / "program.json").read_text())
        self.sessions = {}
        for path in sorted(folder.glob("*.onnx")):
            onnx.checker.check_model(onnx.load(path), full_check=True)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            options.log_severity_level = 3
            self.sessions[path.stem] = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])

    def run(self, phase, values):
        session = self.sessions.get(phase)
        if session is None:
            return
        feeds = {value.name: values[value.name] for value in session.get_inputs()}
        names = [value.name for value in session.get_outputs()]
        values.update(zip(names, session.run(names, feeds)))


def relative_error(got, want, all_norm, all_size):
    floor = 1e-4 * all_norm * np.sqrt(want.size / all_size)
    return np.linalg.norm(got.astype(np.float64) - want) / max(np.linalg.norm(want), floor, 1e-300)


def initial_weights(model_path):
    model = onnx.load(model_path)
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


def accumulator_parts(program):
    """(kind of the accumulator, its value, name of the part) for every sum over microbatches."""
    buffers = program["buffers"]
    parts = set()
    for instruction in program["instructions"]:
        if instruction["kind"] == "accumulate" and instruction.get("microbatch", -1) >= 0:
            source = buffers[instruction["inputs"][0]]["name"].split("@")[0]
            target = buffers[instruction["outputs"][0]]
            parts.add((target["kind"], target["value"], source))
    return sorted(parts)


def main(plan_folder, dump_folder, data_path):
    plan = json.loads((plan_folder / "plan.json").read_text())
    onnx.checker.check_model(onnx.load(plan_folder / "model.onnx"), full_check=True)
    weights = initial_weights(plan["model"])
    ranks = [Rank(folder) for folder in sorted((plan_folder / "ranks").iterdir())]
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
    for k in range(count):
        values = {**weights, **totals, **microbatch(k)}
        for rank in ranks:
            rank.run("forward", values)
        for rank in reversed(ranks):
            rank.run("backward_input", values)
            rank.run("backward_weight", values)
        for kind, target, source in sorted({entry for rank in ranks for entry in accumulator_parts(rank.program)}):
            if source in values:
                name = "gradient/" + target.removesuffix(".gradient") if kind == "gradient" else target
                got[name] = got.get(name, 0) + values[source].astype(np.float64)

    dumped = {}
    for path in sorted(dump_folder.rglob("*.safetensors")):
        for name, tensor in read_safetensors(path).items():
            if name.startswith("gradient/") or name == "loss":
                dumped[name] = tensor
    gradients = {name: tensor for name, tensor in dumped.items() if name.startswith("gradient/")}
    assert len(gradients) > 0, "the dump holds no gradients"
    norm = np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in gradients.values()))
    size = sum(g.size for g in gradients.values())
    worst = max((relative_error(got[name], tensor.astype(np.float64), norm, size), name) for name, tensor in gradients.items())
    loss = float(got["loss"])
    whole = onnxruntime.InferenceSession(plan["model"], providers=["CPUExecutionProvider"])
    names = [value.name for value in whole.get_inputs()]
    reference = float(whole.run([plan["loss"]], {name: batch[name] for name in names})[0])
    print(f"loss: emitted files in ONNX Runtime {loss:.9g}, original model in ONNX Runtime {reference:.9g}, "
          f"pipeshard {float(dumped['loss']):.9g}; worst gradient {worst[1]} {worst[0]:.2e}")
    assert abs(loss - reference) <= FLOAT32_BOUND * abs(reference)
    assert abs(float(dumped["loss"]) - reference) <= FLOAT32_BOUND * abs(reference)
    assert worst[0] <= FLOAT32_BOUND, worst


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
