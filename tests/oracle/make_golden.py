"""Makes golden/MODEL.npz: a batch, and what PyTorch in float64 makes of it.

Usage (with the environment of tools/export/setup.sh): make_golden.py MODEL      e.g. make_golden.py gpt2

The file holds an array for every model input (so it serves as --data), `loss`, and for every gradient its norm and every 37th element of the
flattened tensor; likewise the parameters after three SGD steps (lr 0.1, momentum 0.9) on the same batch, and all of the running statistics
after them (`state/NAME`). `microbatches` says in how many parts the batch was computed, which matters to batch normalisation only.
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np

STRIDE = 37
IGNORED = {"gpt2": "0.3", "llama": "0.3"}  # fraction of the labels
MICROBATCHES = {"resnet": 4}
ROOT = pathlib.Path(__file__).resolve().parents[2]


def sketch(result, kind, name, tensor):
    result[f"{kind}/{name}"] = np.ascontiguousarray(tensor.reshape(-1)[::STRIDE])
    result[f"{kind}_norm/{name}"] = np.linalg.norm(tensor)


def main(model):
    onnx_path = ROOT / "examples" / f"{model}.onnx"
    export = ROOT / "tools" / "export"
    with tempfile.TemporaryDirectory() as folder:
        batch, gradients, parameters = (pathlib.Path(folder) / f"{name}.npz" for name in ("batch", "gradients", "parameters"))
        make = [sys.executable, export / "make_data.py", onnx_path, "--batch", "8", "--output", batch]
        if model in IGNORED:
            make += ["--ignored", IGNORED[model]]
        subprocess.run(make, check=True)
        microbatches = MICROBATCHES.get(model, 1)
        subprocess.run([sys.executable, export / "step_reference.py", onnx_path, "--data", batch, "--gradients", gradients, "--optimizer",
                        "sgd:lr=0.1,momentum=0.9", "--steps", "3", "--parameters", parameters,
                        "--microbatches", str(microbatches)], check=True)
        result = dict(np.load(batch), microbatches=np.int64(microbatches))
        trained = np.load(gradients)
        for name, tensor in np.load(gradients).items():
            if name == "loss":
                result["loss"] = tensor
            else:
                sketch(result, "gradient", name, tensor)
        for name, tensor in np.load(parameters).items():
            if name == "losses":
                continue
            if name not in trained:
                result[f"state/{name}"] = tensor
            else:
                sketch(result, "parameter", name, tensor)
    np.savez(ROOT / "tests" / "oracle" / "golden" / f"{model}.npz", **result)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
