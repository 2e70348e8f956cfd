#!/usr/bin/env bash
# Checkpoints on two hosts that have disks of their own under the same path: mount namespaces, each with a folder of its own there. One
# machine plays both, so that they share what pipeshard asks hosts to share: plan, model, key file.
#
#   tests/cluster/local_disks_test.sh PIPESHARD CASE [ROUNDS [SEED]]    which process is killed when follows from the seed
#
#   own       each host has its ranks' files; a second run reads them; the host that has not all of it says where the rest is
#   fetched   ranks that hold what other hosts have saved (data parallel), an empty disk, hosts that have changed places: it is fetched
#   lost      a part that no host has any more: the job says which, and the command that would copy it
#   damaged   a host finds that its part is not what was written: the job goes back to the checkpoint before, or ends where there is none
#   whole     the same of a part that another host has whole: it comes from there, and the job goes on where it was
#   dumps     what ranks write of their tensors needs a folder that both hosts share: another is refused before the first step
#   alone     what a run on one host has saved goes on over both: the other host gets what it needs; a host whose own is newer, and whole,
#             than the coordinator's refuses to begin
#   rejoined  the same in one job: a node is lost, the other goes on alone, and with the node that has come back from what it has saved
#   apart     the coordinator is on a host that has no ranks: it has the manifest, and the job goes on from there
#   kills     processes of any kind are killed at random moments; the weights are those of a run that is left alone
set -euo pipefail
# shellcheck source=tests/cluster/isolate.sh
source "$(dirname "$0")/isolate.sh"
isolate "$@"
pipeshard=$1
case=$2
rounds=${3:-6}
RANDOM=${4:-1}
needs hostname hostname
work=$(mktemp -d /tmp/pipeshard-disks-XXXXXX)
trap 'rm -rf "$work"' EXIT
mkdir "$work/saved" "$work/disk0" "$work/disk1" "$work/disk2"
plan=$work/job.plan
saved=$work/saved
wait=20
last=300
every=20
extra=()

fail() {
  echo "FAILED: $*" >&2
  tail -n 20 "$work"/*.err >&2
  exit 1
}

# on HOST COMMAND...: what it writes under $saved is on the disk of that host.
on() {
  local host=$1
  shift
  unshare --mount --uts bash -c 'hostname "host$1"; mount --bind "$2/disk$1" "$2/saved"; shift 2; exec "$@"' _ "$host" "$work" "$@"
}

make_plan() {
  "$pipeshard" plan examples/mlp.onnx --cluster 2x1 --optimizer adamw:lr=1e-3 --microbatches 4 "$@" -o "$plan" >"$work/plan.out"
  "$pipeshard" run "$plan" --steps "$last" --checkpoint "$work/whole" --every 1h --threads 1 >"$work/whole.out" 2>"$work/whole.err" || fail "the whole run"
}

# run STEPS [FIRST_NODE_HOST SECOND_NODE_HOST]: the coordinator and node 0 on host 0, node 1 on host 1, unless hosts are given
# (coordinator: its own). Its exit code is that of the coordinator's command.
run() {
  local steps=$1 first=${2:-0} second=${3:-1} code=0
  rm -f "$work/job.key" "$work/run.out"
  on "$first" "$pipeshard" node --key-file "$work/job.key" --wait "$wait" --index 0 >"$work/node0.out" 2>"$work/node0.err" &
  local node0=$!
  on "$second" "$pipeshard" node --key-file "$work/job.key" --wait "$wait" --index 1 >"$work/node1.out" 2>"$work/node1.err" &
  local node1=$!
  on "${coordinator:-$first}" "$pipeshard" run "$plan" --steps "$steps" --checkpoint "$saved" --every $every --listen 'tcp://127.0.0.1:*' \
    --key-file "$work/job.key" --node-timeout "$wait" --threads 1 "${extra[@]}" >"$work/run.out" 2>"$work/run.err" &
  pids=("$!" "$node0" "$node1")
  [ -z "${killer:-}" ] || $killer
  wait "${pids[0]}" || code=$?
  wait "$node0" "$node1" || true
  return $code
}

# What both disks have together equals the run that was left alone.
compare() {
  local name
  name=$(printf 'step-%06d' "$last")
  mkdir -p "$work/all/$name"
  cp "$work/disk0/$name"/* "$work/all/$name"
  # A host that was killed before it had heard of the last commit has its part under the name that it had before.
  if [ -e "$work/disk1/$name" ]; then
    cp "$work/disk1/$name"/rank-* "$work/all/$name"
  else
    cp "$work/disk1/$name".partial-*/rank-* "$work/all/$name"
  fi
  "$pipeshard" checkpoint "$work/all" --verify >"$work/verify.out" || fail "the parts are not those of the manifest"
  "$pipeshard" checkpoint "$work/whole" --compare "$work/all" || fail "the weights differ"
}

# Every third time at the start of the attempt, else after a checkpoint.
kill_one() {
  local found
  if [ $((RANDOM % 3)) -gt 0 ]; then
    until grep -qs "^checkpoint: " "$work/run.out" || ! kill -0 "${pids[0]}" 2>/dev/null; do sleep 0.02; done
  fi
  sleep "0.$((RANDOM % 5))$((RANDOM % 10))"
  until mapfile -t found < <(pgrep -f "$work/job") && [ ${#found[@]} -gt 0 ]; do
    kill -0 "${pids[0]}" 2>/dev/null || return 0
    sleep 0.02
  done
  kill -KILL "${found[$((RANDOM % ${#found[@]}))]}" 2>/dev/null || true
}

case $case in
  own)
    make_plan --stages uniform:2
    run 100 || fail "the first run"
    grep -q "is on each host's own disk; apart from the coordinator's: host1" "$work/run.err" || fail "it does not say where it writes"
    [ ! -e "$work/disk0/step-000100/rank-0001.safetensors" ] || fail "rank 1 has written on host 0"
    [ -e "$work/disk1/step-000100/rank-0001.safetensors" ] || fail "rank 1 has not written on host 1"
    run 300 || fail "the second run"
    ! grep -q "from other hosts" "$work/run.err" || fail "something was fetched that was there"
    grep -q "saved: .*/step-000300; parts of it are on other hosts' disks, copy them: rank-0001.*host1.*; then .pipeshard export" "$work/run.out" ||
      fail "the run does not say that export needs the other part"
    compare
    on 0 "$pipeshard" checkpoint "$saved" | grep -q "rank-0001.safetensors on host host1 (rsync" || fail "checkpoint does not say where"
    on 0 "$pipeshard" export "$saved" -o "$work/trained.onnx" 2>"$work/export.err" && fail "it exports half a model"
    grep -q "rsync -a --ignore-existing host1:$saved/step-000300/ $saved/step-000300/" "$work/export.err" || fail "export does not say how"
    ;;
  fetched)
    make_plan --stages uniform:1
    run 100 || fail "the first run"
    run 140 || fail "the second run"
    grep -q "host host1.*rank-0000.safetensors of the checkpoint from other hosts" "$work/run.err" || fail "rank 1 has fetched nothing"
    run 180 1 0 || fail "hosts that have changed places"
    cp -r "$work/disk0" "$work/kept"
    rm -rf "$work/disk0"/*
    run 220 1 0 || fail "an empty disk"
    run 300 || fail "the last run"
    compare
    ;;
  lost)
    make_plan --stages uniform:2
    run 100 || fail "the first run"
    rm "$work/disk1/step-000100/rank-0001.safetensors"
    code=0
    run 300 || code=$?
    [ $code -eq 66 ] || fail "exit code $code"
    grep -q "no host that takes part has rank-0001.safetensors.*rsync" "$work/run.err" || fail "it does not say what is lost"
    rm -rf "$work/disk0"/*
    code=0
    run 300 || code=$?
    [ $code -eq 78 ] || fail "exit code $code"
    grep -q "there is a checkpoint on this host's own disk" "$work/run.err" || fail "it begins anew"
    ;;
  damaged)
    make_plan --stages uniform:2
    part=rank-0001.safetensors
    run 100 || fail "the first run"
    printf x | dd of="$work/disk1/step-000100/$part" bs=1 seek=700 conv=notrunc status=none
    run 200 || fail "a part with another byte"
    grep -q "step-000100: $part has the hash .*; going back to an older one" "$work/run.err" || fail "it does not say what it does"
    grep -q "going on after step 80" "$work/run.out" || fail "it goes on elsewhere"
    truncate -s 100 "$work/disk1/step-000200/$part"
    run 300 || fail "a part that is too short"
    grep -q "step-000200: $part has 100 bytes.*; going back to an older one" "$work/run.err" || fail "it does not say what is short"
    compare
    rm -r "$work"/disk?/step-000280
    truncate -s 100 "$work/disk1/step-000300/$part"
    code=0
    run 320 || code=$?
    [ $code -eq 85 ] || fail "exit code $code"
    ;;
  whole)
    make_plan --stages uniform:1
    part=rank-0000.safetensors
    run 100 || fail "the first run"
    run 120 || fail "the second run"
    rm -r "$work"/disk?/step-000120  # host 1 has fetched its copy of the one before
    printf x | dd of="$work/disk1/step-000100/$part" bs=1 seek=700 conv=notrunc status=none
    run 120 || fail "a copy with another byte"
    grep -q "host host1.*$part has the hash .*; it has come whole from another host" "$work/run.err" || fail "it does not say what it does"
    grep -q "going on after step 100" "$work/run.out" || fail "it goes on elsewhere"
    cmp "$work/disk0/step-000100/$part" "$work/disk1/step-000100/$part" || fail "the copy is still damaged"
    rm -r "$work"/disk?/step-000120
    truncate -s 100 "$work/disk1/step-000100/$part"
    run 300 || fail "a copy that is too short"
    grep -q "host host1.*$part has 100 bytes.*; it has come whole from another host" "$work/run.err" || fail "it does not say what is short"
    compare
    ;;
  dumps)
    make_plan --stages uniform:2
    mkdir "$work/disk1/dump"
    extra=(--dump "$saved/dump")
    code=0
    run 20 || code=$?
    [ $code -eq 78 ] || fail "exit code $code"
    grep -q "host host1.*$saved/dump is on this host not the folder .*which all hosts must share: name one with --dump" "$work/run.err" ||
      fail "it does not say what is needed"
    [ -z "$(ls -A "$work/disk0/dump" "$work/disk1/dump" | grep safetensors)" ] || fail "a step was done"
    extra=(--dump "$work/dump")
    run 20 || fail "a folder that both hosts share"
    [ -e "$work/dump/step-000020.rank-0000.safetensors" ] || fail "rank 0 has dumped nothing"
    [ -e "$work/dump/step-000020.rank-0001.safetensors" ] || fail "rank 1 has dumped nothing"
    [ -z "$(ls -A "$work/dump" | grep -v safetensors)" ] || fail "something else is left: $(ls -A "$work/dump")"
    ;;
  alone)
    make_plan --stages uniform:1
    run 60 || fail "the first run"
    on 0 "$pipeshard" run "$plan" --steps 100 --checkpoint "$saved" --every 1h --threads 1 >"$work/alone.out" 2>"$work/alone.err" || fail "the run on host 0"
    code=0
    run 200 1 0 || code=$?
    [ $code -eq 78 ] || fail "exit code $code"
    grep -q "whole checkpoint on this host's own disk, $saved/step-000100, and .* none newer than step 60" "$work/run.err" || fail "it does not say which is newer"
    run 200 || fail "over both hosts"
    grep -q "going on after step 100" "$work/run.out" || fail "it goes on elsewhere"
    grep -q "host host1.*has got .*rank-0000.safetensors.* of the checkpoint from other hosts" "$work/run.err" || fail "host 1 has got nothing"
    run 300 1 0 || fail "hosts that have changed places"
    grep -q "going on after step 200" "$work/run.out" || fail "it goes on elsewhere than after step 200"
    compare
    ;;
  rejoined)
    last=1
    make_plan --stages uniform:1
    on 0 "$pipeshard" run "$plan" --steps 10000000 --checkpoint "$saved" --every 1s --restarts 3 --listen 'tcp://127.0.0.1:*' \
      --key-file "$work/job.key" --node-timeout "$wait" --threads 1 >"$work/run.out" 2>"$work/run.err" &
    job=$!
    daemon() { on "$1" "$pipeshard" node --key-file "$work/job.key" --wait "$((60 + $1))" >>"$work/node$1.out" 2>>"$work/node$1.err" & }
    pid_of() { pgrep -f "^$pipeshard node --key-file $work/job.key --wait $((60 + $1))"; }
    await() {  # TIMES TEXT
      local tries=0
      until [ "$(cat "$work/run.out" "$work/run.err" | grep -c "$2")" -ge "$1" ]; do
        kill -0 $job 2>/dev/null || fail "the job has ended; there is no '$2'"
        [ $((++tries)) -lt 400 ] || fail "no '$2'"
        sleep 0.2
      done
    }
    daemon 0
    await 1 "node 0 joined"
    daemon 1
    await 1 "^checkpoint: "
    lost=$(pid_of 1)
    pkill -KILL -P "$lost" || true
    kill -KILL "$lost"
    await 1 "restart 1 of 3 (.*is done"
    await 1 "checkpoints: host host0 writes all of them"
    await $(($(cat "$work/run.out" "$work/run.err" | grep -c "^checkpoint: ") + 2)) "^checkpoint: "
    daemon 1
    await 2 "joined: host host1"
    pkill -KILL -P "$(pid_of 0)"
    await 1 "restart 2 of 3 (.*is done"
    ! grep -h "older one" "$work/run.out" "$work/run.err" || fail "a whole checkpoint was skipped"
    grep -q "host host1.*has got .* of the checkpoint from other hosts" "$work/run.err" || fail "host 1 takes no part"
    ;;
  apart)
    make_plan --stages uniform:2
    coordinator=2
    run 100 || fail "the first run"
    [ -e "$work/disk2/step-000100/COMMIT" ] || fail "the coordinator's host has no manifest"
    [ -e "$work/disk1/step-000100/COMMIT" ] || fail "host 1 has not heard of the commit"
    run 300 || fail "the second run"
    grep -q "going on after step 100" "$work/run.out" || fail "it goes on elsewhere"
    grep -q "saved: .*rank-0000.safetensors on host host0 .*rank-0001.safetensors on host host1" "$work/run.out" || fail "it does not say where all of it is"
    compare
    ;;
  kills)
    wait=4
    last=3000
    every=50
    for stages in uniform:1 uniform:2; do
      rm -rf "$work"/disk?/* "$work/all" "$work/whole" "$plan"
      make_plan --stages $stages
      killer=kill_one
      struck=0
      for ((round = 0; round < rounds; ++round)); do
        code=0
        run $last || code=$?
        case $code in
          0) ;;
          69 | 137) struck=1 ;;
          *) fail "exit code $code after a kill" ;;
        esac
      done
      killer=
      [ $struck -eq 1 ] || fail "no kill met a job that was at work"
      run $last || fail "the last run"
      compare
    done
    ;;
  *) fail "there is no case $case" ;;
esac
echo "passed: $case${4:+, seed $4}"
