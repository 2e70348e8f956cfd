#!/usr/bin/env bash
# emitted_files.sh PIPESHARD PYTHON MODEL SCHEDULE: plans, takes one step, and lets emitted_files.py recompute it.
set -euo pipefail
pipeshard=$1 python=$2 model=$3 schedule=$4
if ! "$python" -c 'import onnx, onnxruntime' 2>/dev/null; then
  echo "skipped: no Python with onnx and onnxruntime (tools/setup.sh --tests installs it)"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
data=tests/oracle/golden/$model.npz
"$pipeshard" plan "examples/$model.onnx" --cluster 1x4 --microbatches 4 --schedule "$schedule" --optimizer sgd:lr=0.1 -o "$work/plan"
"$pipeshard" validate "$work/plan" --steps 1 --data "$data" --dump "$work/dump"
"$python" tests/oracle/emitted_files.py "$work/plan" "$work/dump/planned" "$data"
