#!/usr/bin/env bash
# torch_step.sh PIPESHARD PYTHON MODEL.onnx: torch_step.py, where there is a PyTorch.
set -euo pipefail
if ! "$2" -c 'import torch, onnx, transformers' 2>/dev/null; then
  echo "skipped: no Python with PyTorch (tools/export/setup.sh installs it)"
  exit 77
fi
exec "$2" tests/oracle/torch_step.py "$1" "$3"
