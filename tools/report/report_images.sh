#!/usr/bin/env bash
# Makes the pictures of docs/images anew: the example GPT-2 on four ranks with two stages each, predicted; the same bytes everywhere.
set -euo pipefail
cd "$(dirname "$0")/../.."
command=${PIPESHARD:-build/release/tools/pipeshard}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$command" plan examples/gpt2.onnx --cluster 1x4 --schedule interleaved:v=2 --microbatches 8 --optimizer adamw:lr=1e-3 \
  -o "$folder/gpt2.plan" >/dev/null
"$command" report "$folder/gpt2.plan" --svg docs/images
