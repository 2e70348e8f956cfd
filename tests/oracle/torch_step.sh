#!/usr/bin/env bash
# torch_step.sh PIPESHARD PYTHON SCRIPT.py [ARGUMENT...]: the script of this folder, where there is a PyTorch.
set -euo pipefail
if ! "$2" -c 'import torch, onnx, transformers' 2>/dev/null; then
  echo "skipped: no Python with PyTorch (tools/export/setup.sh installs it)"
  exit 77
fi
exec "$2" -B "tests/oracle/$3" "$1" "${@:4}"
