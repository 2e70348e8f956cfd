#!/usr/bin/env bash
# `pipeshard node` as launchers start it, on one machine.
#
#   tests/cluster/launcher_test.sh PIPESHARD CASE      CASE: a function case_... below, without the prefix
#
# Cases slurm_* run in an allocation of a real Slurm with two simulated nodes (slurm.sh).
set -euo pipefail
here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
source "$here/isolate.sh"
pipeshard=$(realpath "$1")
cd "$here/../.."
two_nodes=(examples/gpt2.onnx --cluster 2x2 --stages uniform:4 --microbatches 4)
folder=/mnt  # a tmpfs in the namespace of this test

die() {
  echo "FAILED: $*" >&2
  tail -n 40 $folder/*.txt >&2
  exit 1
}

# expect CODE COMMAND...: output and errors go to out.txt and err.txt.
expect() {
  local want=$1 code=0
  shift
  "$@" >$folder/out.txt 2>$folder/err.txt || code=$?
  [ $code -eq "$want" ] || die "exit code $code, not $want: $*"
}

says() { grep -qE -- "$2" "$folder/$1.txt" || die "$1.txt does not say '$2'"; }

says_times() { [ "$(grep -cE -- "$3" "$folder/$2.txt")" -eq "$1" ] || die "$2.txt does not say '$3' $1 times"; }

no_process_left() {
  local tries
  for ((tries = 0; tries < 50; ++tries)); do
    pgrep -f "^$pipeshard " >/dev/null || return 0
    sleep 0.1
  done
  die "processes are left: $(pgrep -a -f "^$pipeshard ")"
}

nothing_left() {
  no_process_left
  [ -z "$(ls $folder/cache/pipeshard/jobs)" ] || die "key files are left"
}

passed_on_two_nodes() {
  says out '^PASS'
  says_times 2 err 'joined the coordinator'
  says err 'started ranks 0, 1'
  says err 'started ranks 2, 3'
  says_times 2 err 'the job is done'
  nothing_left
}

case_slurm_validate() {
  expect 0 srun --ntasks-per-node=1 "$pipeshard" node validate "${two_nodes[@]}"
  says_times 2 err 'started by Slurm \(SLURM_STEP_ID='
  passed_on_two_nodes
}

# Two tasks on each node, where one is enough.
case_slurm_surplus() {
  expect 0 srun --overcommit --ntasks-per-node=2 "$pipeshard" node validate "${two_nodes[@]}"
  says_times 2 err 'nothing to do for local rank 1'
  passed_on_two_nodes
}

# The coordinator in the allocation's shell, which is no step; the daemons as a step.
case_slurm_step_joins() {
  "$pipeshard" validate "${two_nodes[@]}" --listen tcp://127.0.0.1:* --key-file $folder/job.key >$folder/coordinator.txt 2>&1 &
  local coordinator=$! code=0
  expect 0 srun --ntasks-per-node=1 "$pipeshard" node --key-file $folder/job.key
  wait $coordinator || code=$?
  [ $code -eq 0 ] || die "the coordinator ended with $code"
  says coordinator '^PASS'
  says err 'started ranks 2, 3'
  says_times 2 err 'the job is done'
  [ ! -e $folder/job.key ] || die "the key file is left"
}

start_long_job() {
  "$pipeshard" plan "${two_nodes[@]}" -o $folder/plan >$folder/plan.txt
  srun --ntasks-per-node=1 "$pipeshard" node run $folder/plan --steps 10000000 >$folder/out.txt 2>$folder/err.txt &
  step=$!
  local tries
  for ((tries = 0; tries < 600; ++tries)); do
    grep -q '^step' $folder/out.txt && return
    sleep 0.1
  done
  die "no step within 60 seconds"
}

case_slurm_worker_killed() {
  start_long_job
  local victim code=0
  victim=$(pgrep -f -- ' worker .* --rank 2 ')
  kill -KILL "$victim"
  wait $step || code=$?
  [ $code -eq 69 ] || die "exit code $code, not 69"
  says_times 1 err "^pipeshard: peer unavailable: worker of rank 2 \(host .*, pid $victim\) was killed by signal 9"
  nothing_left
}

case_slurm_stopped() {
  start_long_job
  scancel --signal=TERM "$SLURM_JOB_ID.0"
  local code=0
  wait $step || code=$?
  [ $code -ne 0 ] || die "exit code 0"
  says err 'stopped by SIGTERM'
  nothing_left
}

# SIGKILL to all tasks at once: nobody is left to remove the key file.
case_slurm_cancelled() {
  start_long_job
  scancel "$SLURM_JOB_ID.0"
  wait $step || true
  no_process_left
}

case_slurm_mpirun() {
  needs mpirun openmpi-bin
  expect 0 mpirun --allow-run-as-root -N 1 "$pipeshard" node validate "${two_nodes[@]}"
  says_times 2 err 'started by Open MPI \(OMPI_COMM_WORLD_RANK='
  passed_on_two_nodes
}

case_slurm_contradiction() {
  # RANK is what the user's script got wrong: both tasks say that they are the first.
  expect 78 srun --ntasks-per-node=1 env RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \
    "$pipeshard" node --wait 5 validate "${two_nodes[@]}"
  says err "Slurm and torchrun contradict each other on the node's number \(1 and 0\): .*SLURM_NODEID=1.*RANK=0"
}

case_mpirun_on_one_host() {
  needs mpirun openmpi-bin
  # mpirun does not start where there is nothing but loopback.
  ip link add cable0 type veth peer name cable1
  ip address add 192.0.2.1/24 dev cable0
  ip link set cable0 up
  ip link set cable1 up
  expect 0 mpirun --allow-run-as-root --oversubscribe -np 2 "$pipeshard" node validate examples/mlp.onnx --cluster 1x2
  says out '^PASS'
  says_times 1 err 'nothing to do for local rank 1'
  nothing_left
}

case_torchrun() {
  export WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=test
  RANK=1 "$pipeshard" node validate "${two_nodes[@]}" >$folder/out1.txt 2>$folder/err1.txt &
  local second=$! code=0
  RANK=0 expect 0 "$pipeshard" node validate "${two_nodes[@]}"
  wait $second || code=$?
  [ $code -eq 0 ] || die "the second daemon ended with $code"
  says out '^PASS'
  says err 'started by torchrun \(RANK=0'
  says err1 'started ranks 2, 3'
  nothing_left
}

name=$2
needs pgrep procps
[ "$(type -t "case_$name")" = function ] || die "there is no case $name"
if [ "${3:-}" != --inside ]; then
  case $name in
    slurm_*) exec "$here/slurm.sh" "$BASH" "$here/launcher_test.sh" "$pipeshard" "$name" --inside ;;
  esac
  isolate "$@"
fi
mount -t tmpfs none $folder
mkdir $folder/cache
export XDG_CACHE_HOME=$folder/cache
"case_$name"
echo "passed: $name"
