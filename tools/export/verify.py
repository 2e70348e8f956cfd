"""Check files that export.py made against ONNX, ONNX Runtime and PyTorch.

For each file: ONNX's checker accepts it; ONNX Runtime computes PyTorch's loss, for several batch sizes, with and
without ignored labels; ONNX's reference evaluator, with every float32 raised to float64, computes the loss and the
running statistics that step_reference.py computes, and its finite differences along the gradients are as long as they.
"""

import argparse
import sys

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

import onnx_file
from make_data import batch_for
from step_reference import forward

BATCHES = ((1, 0.0), (2, 0.0), (8, 0.0), (2, 0.4), (8, 0.4))
FLOAT32_TOLERANCE = 1e-6
FLOAT64_TOLERANCE = 1e-12
GRADIENT_TOLERANCE = 1e-7
STEP = 1e-4


class DoubleEvaluator:
    """The file's loss in float64, as a function of the batch and, optionally, of moved parameters."""

    def __init__(self, model: onnx.ModelProto):
        self.parameters = {name: array.astype(np.float64) for name, array in onnx_file.parameters(model).items()}
        double = onnx_file.in_double(model)
        # What is an input rather than an initializer can be given a new value on every call.
        kept = [tensor for tensor in double.graph.initializer if tensor.name not in self.parameters]
        del double.graph.initializer[:]
        double.graph.initializer.extend(kept)
        for name, array in self.parameters.items():
            double.graph.input.append(onnx.helper.make_tensor_value_info(name, TensorProto.DOUBLE, array.shape))
        self.evaluator = ReferenceEvaluator(double)

    def run(self, batch: dict[str, np.ndarray], moved: dict[str, np.ndarray] = {}) -> dict[str, np.ndarray]:
        feeds = {name: array.astype(np.float64) if array.dtype == np.float32 else array
                 for name, array in batch.items()}
        return dict(zip(self.evaluator.output_names,
                        self.evaluator.run(None, {**feeds, **self.parameters, **moved})))

    def loss(self, batch: dict[str, np.ndarray], moved: dict[str, np.ndarray]) -> float:
        return float(self.run(batch, moved)["loss"])


def relative(got, want) -> float:
    return abs(float(got) - float(want)) / abs(float(want))


def farthest(outputs: dict[str, np.ndarray], module: torch.nn.Module, updates: dict[str, str]) -> float:
    """The largest relative error of running statistics in `outputs` against the module's."""
    def error(got, want):
        return np.linalg.norm(got - want) / np.linalg.norm(want)
    return max(error(outputs[output], module.get_buffer(name).numpy()) for name, output in updates.items())


def report(what: str, error: float, tolerance: float) -> bool:
    passed = error <= tolerance
    print(f"  {'ok  ' if passed else 'FAIL'} {what}: {error:.1e} (allowed {tolerance:.0e})")
    return passed


def verify(path: str) -> bool:
    print(path)
    onnx.checker.check_model(path, full_check=True)
    print("  ok   onnx.checker")
    model = onnx_file.load(path)
    module = onnx_file.rebuild(model)
    evaluator = DoubleEvaluator(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    double = onnx_file.is_double(model)
    if double:  # whose fused operators bring constants of their own
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except NoKernel as error:
        session = None
        print(f"  not checked: ONNX Runtime cannot run it: {error}")
    names = [value.name for value in model.graph.output]
    step, difference_tolerance = getattr(module, "DIFFERENCE", (STEP, GRADIENT_TOLERANCE))

    passed = True
    updates = onnx_file.state_updates(model)
    initial = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    has_labels = any(value.name == "labels" for value in model.graph.input)
    for batch, ignored in BATCHES:
        if ignored and not has_labels:
            continue
        batch *= getattr(module, "batch_multiple", 1)
        arrays = batch_for(model, batch, seed=batch, ignored=ignored)
        tensors = {name: torch.from_numpy(array.astype(np.float64) if array.dtype == np.float32 else array)
                   for name, array in arrays.items()}
        module.zero_grad()
        module.load_state_dict(initial)
        loss = forward(module, tensors)
        loss.backward()
        outputs = evaluator.run(arrays)
        what = f"batch {batch}, {ignored:.0%} ignored, loss {loss.item():.4f}:"
        checks = [("float64 reference", outputs, FLOAT64_TOLERANCE)]
        if session:
            checks.append(("ONNX Runtime", dict(zip(names, session.run(names, arrays))),
                           FLOAT64_TOLERANCE if double else FLOAT32_TOLERANCE))
        for runtime, results, tolerance in checks:
            passed &= report(f"{what} {runtime}", relative(results["loss"], loss.item()), tolerance)
            if updates:
                passed &= report(f"{what} {runtime}, running statistics", farthest(results, module, updates), tolerance)
    # The last batch's gradients, each parameter on its own.
    worst, worst_name = 0.0, ""
    for name, array in evaluator.parameters.items():
        gradient = module.get_parameter(name).grad.numpy()
        direction = gradient / max(np.linalg.norm(gradient), 1e-300)
        ahead, behind, further_ahead, further_behind = (
            evaluator.loss(arrays, {name: array + steps * step * direction}) for steps in (1, -1, 2, -2))
        difference = (8 * (ahead - behind) - (further_ahead - further_behind)) / (12 * step)
        error = abs(difference - np.linalg.norm(gradient)) / max(np.linalg.norm(gradient), 1e-3)
        if error > worst:
            worst, worst_name = error, name
    passed &= report(f"finite differences of {len(evaluator.parameters)} parameters, worst {worst_name}",
                     worst, difference_tolerance)
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(prog="verify.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL.onnx", help="files that export.py made")
    options = parser.parse_args()
    sys.exit(0 if all([verify(path) for path in options.models]) else 1)


if __name__ == "__main__":
    main()
