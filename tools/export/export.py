"""Export a model's training step (forward pass and loss) to ONNX, as pipeshard reads it.

The file holds the forward pass from the batch to the scalar output `loss`; pipeshard adds the backward pass and the
optimizer. Running statistics, if there are any, are further outputs. The batch axis is dynamic and named `batch`.
Weights lie beside the file in PATH.data.
"""

import argparse
import inspect
import json
import logging
import pathlib
import shlex
import sys
import warnings

import numpy as np
import onnx_ir as ir
import torch

import onnx_file
from models import MODELS, build, build_without_weights
from step_export import export_step, export_step_torchscript, save, save_without_weights

DEFAULT_BATCH = 8


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="export.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
               "  export.py mlp --output mlp.onnx                  a few layers of 32 features, 70 kB\n"
               "  export.py gpt2 --size full --output gpt2.onnx    GPT-2 with 124 million parameters, 0.5 GB\n"
               "  export.py gpt2 --layers 8 --output deep.onnx     the small one, with eight layers instead of four\n"
               "  export.py gpt2 --size 39B --no-weights --output gpt.onnx    the graph alone, for planning\n")
    parser.add_argument("--version", action="version", version=f"torch {torch.__version__}, onnx_ir {ir.__version__}")
    models = parser.add_subparsers(dest="model", required=True, metavar="MODEL")
    for name, model in MODELS.items():
        sub = models.add_parser(
            name, help=model.__doc__.splitlines()[0], description=inspect.cleandoc(model.__doc__),
            formatter_class=argparse.RawDescriptionHelpFormatter)
        sub.add_argument("--output", required=True, type=pathlib.Path, metavar="PATH",
                         help="the .onnx file to write; weights go to PATH.data")
        sub.add_argument("--size", choices=model.SIZES, default="small",
                         help="small: for tests, below 1 MB; full: the published size; others: Alpa's benchmark "
                              "(default: %(default)s)")
        sub.add_argument("--double", action="store_true",
                         help="the same numbers in float64, for comparisons far below float32's rounding")
        sub.add_argument("--no-weights", action="store_true",
                         help="write no PATH.data and use no memory for it; the file refers to it all the same")
        sub.add_argument("--exporter", choices=("dynamo", "torchscript"), default="dynamo",
                         help="of PyTorch; torchscript is the older one (default: %(default)s)")
        sub.add_argument("--seed", type=int, default=0, help="of the initial parameters (default: %(default)s)")
        for key, small in model.SIZES["small"].items():
            sub.add_argument(f"--{key.replace('_', '-')}", type=type(small), default=None,
                             help=f"overrides the size (small {small}, full {model.SIZES['full'][key]})")
        for key, choices in getattr(model, "CHOICES", {}).items():
            sub.add_argument(f"--{key}", choices=choices, default=choices[0],
                             help=f"default: {choices[0]}")
        for key, what in getattr(model, "RATES", {}).items():
            sub.add_argument(f"--{key}", type=float, default=None, help=what + " (default: nothing)")
        for key, what in getattr(model, "FLAGS", {}).items():
            sub.add_argument(f"--{key}", action=argparse.BooleanOptionalAction, help=what + " (default: as the size)")
    options = parser.parse_args(arguments)
    if options.no_weights and (options.double or options.exporter == "torchscript"):
        parser.error("--no-weights goes with float32 and the dynamo exporter only")
    return options


def main(arguments) -> None:
    options = parse_arguments(arguments)
    warnings.filterwarnings("ignore", category=UserWarning)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    config = dict(MODELS[options.model].SIZES[options.size])
    further = [key for kind in ("CHOICES", "FLAGS", "RATES") for key in getattr(MODELS[options.model], kind, {})]
    for key in [*config, *(key for key in further if key not in config)]:
        override = getattr(options, key)
        if override is not None:
            config[key] = override

    try:
        module = (build_without_weights(options.model, config) if options.no_weights
                  else build(options.model, config, options.seed))
    except ValueError as error:
        raise SystemExit(f"export.py: {error}")
    inputs = module.example_inputs(DEFAULT_BATCH, np.random.default_rng(0))
    export = export_step if options.exporter == "dynamo" else export_step_torchscript
    model = export(module, {name: torch.from_numpy(array) for name, array in inputs.items()})
    if options.double:
        model = ir.from_proto(onnx_file.in_double(ir.to_proto(model)))
    model.metadata_props["pipeshard.dimensions"] = f"batch={DEFAULT_BATCH}"
    model.metadata_props["pipeshard.export_command"] = shlex.join(["python", "tools/export/export.py", *arguments])
    model.metadata_props["pipeshard.export_config"] = json.dumps({"model": options.model, "config": config})
    data = options.output.with_name(options.output.name + ".data")
    if options.no_weights:
        weights = f"none written, {save_without_weights(model, options.output)} bytes"
    else:
        save(model, options.output)
        weights = f"{data.stat().st_size} bytes"
    print(f"{options.output}: {len(list(model.graph))} nodes, {options.output.stat().st_size} bytes; weights {weights}")


if __name__ == "__main__":
    main(sys.argv[1:])
