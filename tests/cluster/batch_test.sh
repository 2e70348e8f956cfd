#!/usr/bin/env bash
# The scripts of examples/batch in a real Slurm (slurm.sh): asked to end they save, go into the queue again, go on and come to their end
# with the weights of a run that was left alone.
#
#   tests/cluster/batch_test.sh PIPESHARD SCRIPT      SCRIPT: train.sbatch (one node) or train_nodes.sbatch (two)
set -euo pipefail
here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
source "$here/isolate.sh"
pipeshard=$(realpath "$1")
script=$2
cd "$here/../.."
if [ "${3:-}" != --inside ]; then
  exec "$here/slurm.sh" --no-allocation "$BASH" "$here/batch_test.sh" "$pipeshard" "$script" --inside
fi
folder=/mnt
mount -t tmpfs none $folder
mkdir $folder/cache
export XDG_CACHE_HOME=$folder/cache PIPESHARD=$pipeshard PLAN=$folder/job.plan SAVED=$folder/saved STEPS=400 OPTIONS="--threads 1"
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

nodes=1
cluster=1x2
if [ "$script" = train_nodes.sbatch ]; then
  nodes=2
  cluster=2x1
fi
"$pipeshard" plan examples/gpt2.onnx --cluster $cluster --stages uniform:2 --microbatches 4 -o $PLAN >$folder/plan.txt
job=$(sbatch --parsable --nodes=$nodes --output=$output "examples/batch/$script")
within 60 "step [0-9]*/"
scancel --signal=TERM --batch "$job"
within 60 "into the queue again"
within 120 "going on after step"
end=$((SECONDS + 120))
while squeue --noheader --job="$job" 2>/dev/null | grep -q .; do
  [ $SECONDS -lt $end ] || die "the job has not ended"
  sleep 0.2
done
"$pipeshard" run $PLAN --steps $STEPS --checkpoint $folder/whole >$folder/whole.txt
"$pipeshard" checkpoint $folder/whole --compare $SAVED || die "the weights differ"
echo "passed: $script"
