"""Make a random batch for a model that export.py made: an .npz file with one array for each input.

Integer inputs of a language model are token numbers. With --ignored, that fraction of the labels is -100, which the
loss leaves out, as padding would be; the number of labels that count then differs from sample to sample.
"""

import argparse

import numpy as np
import onnx

import onnx_file

IGNORED_LABEL = -100


def batch_for(model: onnx.ModelProto, batch: int, seed: int = 0, ignored: float = 0.0) -> dict[str, np.ndarray]:
    """Inputs by name, in the types that the file declares."""
    rng = np.random.default_rng(seed)
    arrays = onnx_file.fresh_module(model).example_inputs(batch, rng)
    if "labels" in arrays:
        arrays["labels"][rng.random(arrays["labels"].shape) < ignored] = IGNORED_LABEL
    if onnx_file.is_double(model):
        arrays = {name: array.astype(np.float64) if array.dtype == np.float32 else array
                  for name, array in arrays.items()}
    return arrays


def main() -> None:
    parser = argparse.ArgumentParser(prog="make_data.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL.onnx", help="a file that export.py made")
    parser.add_argument("--output", required=True, metavar="NPZ", help="the file to write")
    parser.add_argument("--batch", type=int, default=8, help="samples (default: %(default)s)")
    parser.add_argument("--ignored", type=float, default=0.0, metavar="FRACTION",
                        help="of the labels, to be left out of the loss (default: none)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    options = parser.parse_args()
    np.savez(options.output,
             **batch_for(onnx_file.load(options.model), options.batch, options.seed,
                         options.ignored))


if __name__ == "__main__":
    main()
