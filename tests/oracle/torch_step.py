"""Compares a step of pipeshard with PyTorch, both in float64, on a fresh batch.

Usage (with the environment of tools/export/setup.sh): torch_step.py PIPESHARD MODEL.onnx [SEED]

PIPESHARD is the built command. Four workers, eight microbatches, three SGD steps with momentum. PyTorch computes the batch in the
same microbatches, which matters to batch normalisation only; its running statistics are compared, too.
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from emitted_files import read_safetensors, relative_error

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXPORT = ROOT / "tools" / "export"
OPTIMIZER = "sgd:lr=0.1,momentum=0.9"
MICROBATCHES = "8"
BOUND = 1e-9


def compare(kind, got, want):
    norm = np.sqrt(sum(np.sum(tensor ** 2) for tensor in want.values()))
    size = sum(tensor.size for tensor in want.values())
    errors = [(relative_error(got[f"{kind}/{name}"], tensor, norm, size), name) for name, tensor in want.items()]
    worst = max(errors)
    print(f"{kind}: {len(errors)} tensors, worst {worst[1]} {worst[0]:.2e}")
    assert worst[0] <= BOUND, worst


def dumped(folder, step):
    tensors = {}
    for path in sorted(folder.rglob(f"*step-{step:06d}*.safetensors")):
        tensors.update(read_safetensors(path))
    return tensors


def main(pipeshard, model, seed):
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        batch = folder / "batch.npz"
        make = [sys.executable, EXPORT / "make_data.py", model, "--batch", "8", "--seed", seed, "--output", batch]
        if "gpt2" in pathlib.Path(model).name:
            make += ["--ignored", "0.3"]
        subprocess.run(make, check=True)
        subprocess.run([sys.executable, EXPORT / "step_reference.py", model, "--data", batch, "--gradients", folder / "g.npz", "--optimizer",
                        OPTIMIZER, "--steps", "3", "--parameters", folder / "p.npz", "--microbatches", MICROBATCHES], check=True)
        subprocess.run([pipeshard, "validate", model, "--cluster", "1x4", "--microbatches", MICROBATCHES, "--precision", "float64", "--optimizer",
                        OPTIMIZER, "--steps", "3", "--data", batch, "--dump", folder / "dump"], check=True, stdout=subprocess.DEVNULL)
        gradients = {name: tensor for name, tensor in np.load(folder / "g.npz").items() if name != "loss"}
        after = {name: tensor for name, tensor in np.load(folder / "p.npz").items() if name != "losses"}
        parameters = {name: tensor for name, tensor in after.items() if name in gradients}
        statistics = {name: tensor for name, tensor in after.items() if name not in gradients}
        compare("gradient", dumped(folder / "dump" / "planned", 1), gradients)
        third = dumped(folder / "dump" / "planned", 3)
        compare("parameter", third, parameters)
        assert {f"forward_state/{name}" for name in statistics} == {name for name in third if name.startswith("forward_state/")}
        if statistics:
            compare("forward_state", third, statistics)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) == 4 else "1")
