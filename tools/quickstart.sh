#!/usr/bin/env bash
# From a fresh clone to the main job: installs what is missing, builds, partitions the example GPT-2 over four worker
# processes, trains it for three steps and compares every tensor with a single device. About ten minutes on 2 cores the first
# time, seconds afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/lib.sh

tools/setup.sh
build release pipeshard

command=(build/release/tools/pipeshard validate examples/gpt2.onnx --cluster 1x4 --stages uniform:4 --schedule 1f1b --microbatches 8
  --optimizer adamw:lr=1e-3 --steps 3 -o build/quickstart.plan)
say "${command[*]}"
"${command[@]}"
say "the plan and its report: build/quickstart.plan/report.html"
