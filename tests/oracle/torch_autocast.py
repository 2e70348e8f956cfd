"""Compares bfloat16 gradients of pipeshard and of torch.autocast, on the CPU, with PyTorch's in float64.

Usage (with the environment of tools/export/setup.sh): torch_autocast.py PIPESHARD [MODEL.onnx ...]

PIPESHARD is the built command. The error is the norm of all differences over that of all gradients, on random batches of eight; "kept" has
residual sums and normalisations in float32, as autocast has. Both must be near autocast's error, by factors that stand below.
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(ROOT / "tools" / "export")]
import make_data  # noqa: E402
import onnx_file  # noqa: E402
from emitted_files import read_safetensors  # noqa: E402

BATCHES = 4
WAYS = {"bfloat16": ([], 1.6), "kept": (["--keep-float32", "^Add$|Normalization"], 1.25)}  # at most so many times autocast's error


def by_torch(module, names, arrays, dtype, autocast):
    batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
    batch = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in batch.items()}
    module.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = module(**batch)
    loss.backward()
    return {name: module.get_parameter(name).grad.double().numpy() for name in names}


def by_pipeshard(pipeshard, model, arrays, options):
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        np.savez(folder / "batch.npz", **arrays)
        subprocess.run([pipeshard, "validate", model, "--cluster", "1x1", "--microbatches", "1", "--precision", "bfloat16", "--data", folder / "batch.npz", "--dump",
                        folder / "dump", *options], check=True, capture_output=True)
        tensors = {}
        for path in (folder / "dump" / "planned").glob("step-000001*.safetensors"):
            tensors.update(read_safetensors(path))
        return {name.removeprefix("gradient/"): tensor for name, tensor in tensors.items() if name.startswith("gradient/")}


def error(got, want):
    assert got.keys() == want.keys(), got.keys() ^ want.keys()
    return np.sqrt(sum(np.sum((got[name] - tensor) ** 2) for name, tensor in want.items()) /
                   sum(np.sum(tensor ** 2) for tensor in want.values()))


def compare(pipeshard, path):
    model = onnx_file.load(path)
    names = list(onnx_file.parameters(model))
    exact_module, module = onnx_file.rebuild(model), onnx_file.rebuild(model).float()
    ways = WAYS if pathlib.Path(path).stem != "mlp" else {"bfloat16": WAYS["bfloat16"]}  # it has no sums to keep
    errors = {way: [] for way in ("autocast", *ways)}
    for seed in range(BATCHES):
        arrays = make_data.batch_for(model, 8, seed)
        exact = by_torch(exact_module, names, arrays, torch.float64, False)
        errors["autocast"].append(error(by_torch(module, names, arrays, torch.float32, True), exact))
        for way, (options, _) in ways.items():
            errors[way].append(error(by_pipeshard(pipeshard, path, arrays, options), exact))
    for way, found in errors.items():
        print(f"{pathlib.Path(path).name} {way}: mean {np.mean(found):.4f}, {min(found):.4f} to {max(found):.4f}")
    for way, (_, most) in ways.items():
        assert np.mean(errors[way]) <= most * np.mean(errors["autocast"]), (path, way)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for example in sys.argv[2:] or [str(ROOT / "examples" / f"{name}.onnx") for name in ("mlp", "gpt2", "llama", "resnet")]:
        compare(sys.argv[1], example)
