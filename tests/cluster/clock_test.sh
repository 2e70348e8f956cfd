#!/usr/bin/env bash
# A job on two nodes whose wall clocks jump by hours, twice a second, goes on: no deadline is missed or ends it, and the losses are those
# of a calm run. A worker that is stopped is found as soon as ever.
#
#   tests/cluster/clock_test.sh PIPESHARD CLOCK_JUMPS
set -euo pipefail
here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
source "$here/isolate.sh"
isolate "$@"
needs pkill procps
needs ip iproute2
pipeshard=$(realpath "$1")
jumps=$(realpath "$2")
cd "$here/../.."
folder=/mnt  # a tmpfs in the namespace of this test
mount -t tmpfs none $folder
ip link set lo up

die() {
  echo "FAILED: $*" >&2
  tail -n 20 $folder/*.txt >&2
  exit 1
}

now() { LD_PRELOAD=$jumps date +%s; }
first=$(now)
sleep 0.5
moved=$(($(now) - first))
[ ${moved#-} -gt 3000 ] || die "the clock does not jump"

"$pipeshard" plan examples/gpt2.onnx --cluster 2x2 --stages uniform:4 --microbatches 4 -o $folder/plan >$folder/plan.txt

job() {  # NAME STEPS
  "$pipeshard" run $folder/plan --steps "$2" --checkpoint $folder/$1.saved --every 100 --log $folder/$1.log --json $folder/$1.json \
    --listen tcp://127.0.0.1:7000 --key-file $folder/$1.key >$folder/$1.txt 2>&1 &
  coordinator=$!
  until [ -s $folder/$1.key ]; do
    kill -0 $coordinator || die "$1: no keys"
    sleep 0.05
  done
  for node in 0 1; do
    "$pipeshard" node --key-file $folder/$1.key --index $node >$folder/$1.node$node.txt 2>&1 &
  done
}

job calm 600
wait $coordinator || die "calm: exit code $?"
export LD_PRELOAD=$jumps
job jumping 600
wait $coordinator || die "jumping: exit code $?"
cmp <(tail -n +2 $folder/calm.log/steps.csv | cut -d, -f1,2) <(tail -n +2 $folder/jumping.log/steps.csv | cut -d, -f1,2) || die "other losses"
[ "$(wc -l <$folder/jumping.log/steps.csv)" -eq 601 ] || die "not all steps are in the log"

job stopped 1000000
until grep -q '^step' $folder/stopped.txt; do
  kill -0 $coordinator || die "stopped: has ended before its first step"
  sleep 0.05
done
start=$SECONDS
pkill -STOP -f -- ' worker .* --rank 2 ' || die "no worker of rank 2"
code=0
wait $coordinator || code=$?
[ $code -eq 69 ] || die "stopped: exit code $code"
[ $((SECONDS - start)) -ge 4 ] && [ $((SECONDS - start)) -le 20 ] || die "stopped: noticed after $((SECONDS - start)) s"
