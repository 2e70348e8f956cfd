#!/usr/bin/env bash
# A coordinator that is suspended for longer than workers may be silent (Ctrl-Z and fg, a debugger) goes on with its job.
#
#   tests/cluster/suspend_test.sh PIPESHARD
set -euo pipefail
here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
source "$here/isolate.sh"
isolate "$@"
pipeshard=$(realpath "$1")
cd "$here/../.."
folder=/mnt  # a tmpfs in the namespace of this test
mount -t tmpfs none $folder

die() {
  echo "FAILED: $*" >&2
  tail -n 20 $folder/*.txt >&2
  exit 1
}

"$pipeshard" plan examples/gpt2.onnx --cluster 1x4 --stages uniform:4 --microbatches 4 -o $folder/plan >$folder/plan.txt
"$pipeshard" run $folder/plan --steps 700 >$folder/out.txt 2>$folder/err.txt &
coordinator=$!
until grep -q '^step' $folder/out.txt; do
  kill -0 $coordinator || die "the job has ended before its first step"
  sleep 0.02
done
kill -STOP $coordinator
sleep 7
kill -CONT $coordinator
code=0
wait $coordinator || code=$?
[ $code -eq 0 ] || die "exit code $code"
grep -q '^700 steps' $folder/out.txt || die "the output is not complete"
