#!/usr/bin/env bash
# validate --device cuda of the examples, on one worker and in every way of sharing one out to four, on the stand-in, in both of its
# modes, through the host's memory, by NCCL and by CUDA IPC. Not a test of every change: about an hour and a half of two processors.
#
#   tests/standin/validate_all.sh [BUILD] [EXAMPLE...]     BUILD: the build folder (build/dev); examples: all four
#
# Prints a line for each run and ends with 1 when one has failed, or when the stand-in has reported anything.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=${1:-build/dev}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- mlp gpt2 llama resnet

standin=$build/tests/standin
export LD_LIBRARY_PATH=$standin STANDIN_TWINS=$standin/libstandin_twin.so PIPESHARD_PROFILE=off
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export STANDIN_LOG=$work/standin.log

# By name: the options.
ways=(
  "one-worker --cluster 1x1"
  "gpipe --cluster 1x4 --stages uniform:4 --schedule gpipe --microbatches 4"
  "1f1b --cluster 1x4 --stages uniform:4 --schedule 1f1b --microbatches 4"
  "interleaved --cluster 1x2 --stages uniform:4 --schedule interleaved --microbatches 4"
  "zb-h1 --cluster 1x4 --stages uniform:4 --schedule zb-h1 --microbatches 4"
  "zero3 --cluster 1x4 --stages uniform:1 --method zero3"
  "megatron --cluster 1x4 --stages uniform:1 --method megatron:2,2"
  "buckets --cluster 1x4 --stages uniform:1 --bucket 1KiB"
)

failed=0
for example in "$@"; do
  for way in "${ways[@]}"; do
    for mode in "lazy staged" "lazy nccl" "lazy ipc" "eager staged" "eager nccl" "eager ipc"; do
      read -r schedule transport <<<"$mode"
      [ "$way" != "${ways[0]}" ] || [ "$transport" = staged ] || continue  # one worker reaches nobody
      read -r -a words <<<"$way"
      : >"$STANDIN_LOG"
      seconds=$SECONDS verdict=ok code=0
      # Four GPUs, with room for one kernel of NCCL each.
      STANDIN_MODE=$schedule STANDIN_DEVICES=4 STANDIN_NCCL_RESIDENT=1 "$build/tools/pipeshard" validate "examples/$example.onnx" \
        "${words[@]:1}" --device cuda --transport "$transport" >"$work/output" 2>&1 || code=$?
      if [ $code -ne 0 ]; then
        verdict="FAILED with code $code"
      elif grep -qv ', 0 kinds of faults$' "$STANDIN_LOG"; then
        verdict="FAILED: the stand-in reports faults"
      fi
      printf '%-7s %-12s %-12s %4d s  %s  %s\n' "$example" "${words[0]}" "$mode" $((SECONDS - seconds)) "$verdict" \
        "$(awk '$1 == "gradient" {print "gradients within " $3}' "$work/output")"
      [ "$verdict" = ok ] || { failed=1 && tail -n 20 "$work/output" "$STANDIN_LOG"; }
    done
  done
done
exit $failed
