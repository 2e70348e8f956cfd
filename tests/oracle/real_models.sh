#!/usr/bin/env bash
# real_models.sh PIPESHARD PYTHON: samples of real_models.py and round_trip.py, where there are PyTorch and its libraries.
set -euo pipefail
if ! "$2" -c 'import torch, torchvision, timm, transformers, safetensors, onnxruntime' 2>/dev/null; then
  echo "skipped: no Python with PyTorch, torchvision, timm and transformers (tools/export/setup.sh installs it)"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$2" tests/oracle/round_trip.py "$1" --work "$work" --only '^(GPT-2|T5|ResNet-18)$'
"$2" tests/oracle/real_models.py "$1" --work "$work" --only '^(Linear, 3 axes|Llama|LSTM|DLRM, EmbeddingBag|VQ-VAE)$'
"$2" tests/oracle/real_models.py "$1" --work "$work" --precision bfloat16 --plans 2x2,tensor-parallel --only '^(MobileNetV3|T5)$'
