#!/usr/bin/env bash
# The scripts of examples/batch in a real Slurm (slurm.sh): they come to their end, whatever happens, by the command that they were
# submitted with.
#
#   tests/cluster/batch_test.sh PIPESHARD SCRIPT [CASE]      SCRIPT: train.sbatch (one node) or train_nodes.sbatch (two)
#
#   ended     (if none is said) asked to end they save, go into the queue again, and go on
#   lost      a node falls silent: the job goes on on those that are left, with a plan for fewer devices
#   spare     the same, with a node more than the plan needs: it takes the place
#   first     the first node is lost, with the script and the coordinator: the second puts the job into the queue again, and it goes on
set -euo pipefail
here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
source "$here/isolate.sh"
pipeshard=$(realpath "$1")
script=$2
case=${3:-ended}
cd "$here/../.."
nodes=1
cluster=1x2
if [ "$script" = train_nodes.sbatch ]; then
  nodes=2
  cluster=2x1
fi
hosts=$nodes
[ "$case" != spare ] || nodes=3
case $case in spare | first) hosts=3 ;; esac
if [ "${4:-}" != --inside ]; then
  export SLURMD_TIMEOUT=10
  exec "$here/slurm.sh" --nodes $hosts --no-allocation "$BASH" "$here/batch_test.sh" "$pipeshard" "$script" "$case" --inside
fi
folder=/mnt
mount -t tmpfs none $folder
mkdir $folder/cache
export XDG_CACHE_HOME=$folder/cache PIPESHARD=$pipeshard PLAN=$folder/job.plan SAVED=$folder/saved STEPS=200 OPTIONS="--threads 1 --every 10" WAIT=10
output=$folder/output.txt

die() {
  echo "FAILED: $*" >&2
  tail -n 40 $output >&2
  squeue >&2
  exit 1
}

# within SECONDS TEXT
within() {
  local end=$((SECONDS + $1))
  until grep -q -- "$2" $output 2>/dev/null; do
    [ $SECONDS -lt $end ] || die "no '$2' within $1 seconds"
    sleep 0.1
  done
}

# to NODE SIGNAL: to its slurmd, and to all that Slurm runs there.
to() {
  local pid parent found
  mapfile -t found < <(pgrep -f "slurmd -D -N $1")
  for pid in /proc/[0-9]*; do
    grep -qzsx "SLURMD_NODENAME=$1" "$pid/environ" || continue
    pid=${pid#/proc/}
    found+=("$pid")
    parent=$(ps -o ppid= -p "$pid" | tr -d ' ')
    ! grep -q slurmstepd "/proc/${parent:-0}/comm" 2>/dev/null || found+=("$parent")
  done
  kill "-$2" "${found[@]}"
}

"$pipeshard" plan examples/gpt2.onnx --cluster $cluster --stages uniform:2 --microbatches 4 -o $PLAN >$folder/plan.txt
job=$(sbatch --parsable --nodes=$nodes --output=$output "examples/batch/$script")
within 60 "step [0-9]*/"
case $case in
  ended)
    scancel --signal=TERM --batch "$job"
    within 60 "into the queue again"
    within 120 "going on after step"
    ;;
  lost)
    to n2 STOP  # as a machine without power: it says nothing, and closes nothing
    within 60 "restart 1 of 5: .*with the plan for 1 device"
    within 60 "is done .* after the loss"
    ;;
  spare)
    to n2 STOP
    within 60 "restart 1 of 5: .*going on on node 0 .*, node 2 "
    within 60 "is done .* after the loss"
    ;;
  first)
    within 60 "checkpoint: "
    to n1 KILL
    within 120 "going on after step"
    ;;
esac
within 120 "saved: "
end=$((SECONDS + 120))
while [ "$case" = ended ] && squeue --noheader --job="$job" 2>/dev/null | grep -q .; do  # a lost node keeps it there for long
  [ $SECONDS -lt $end ] || die "the job has not ended"
  sleep 0.2
done
"$pipeshard" run $PLAN --steps $STEPS --checkpoint $folder/whole >$folder/whole.txt
"$pipeshard" checkpoint $folder/whole --compare $SAVED || die "the weights differ"
echo "passed: $script"
