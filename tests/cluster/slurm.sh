#!/usr/bin/env bash
# Runs a command in an allocation of a real Slurm with simulated nodes n1, n2, ... on this machine:
#
#   tests/cluster/slurm.sh [--nodes N] [--no-allocation] COMMAND [ARGUMENT...]       N is 2 if not given
#   tests/cluster/slurm.sh srun --ntasks-per-node=1 sh -c 'echo $SLURM_NODEID'
#
# munged, slurmctld and one slurmd per node live in namespaces of their own (isolate.sh), with their files on a tmpfs there: they meet
# no other Slurm or munge, and end with the script. The command runs in there too: it sees this machine's files, and of the network
# only 192.0.2.1 and loopback; n1, n2, ... are names of 127.0.0.1.
# Credentials of steps live for seconds, since a job that is requeued waits for their end. A node that does not answer is down after
# SLURMD_TIMEOUT seconds (300).
# Exit code: that of the command; 77 with a reason when this machine lacks something; 1 when Slurm does not start.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/isolate.sh"

nodes=2

write_configuration() {
  cat >slurm.conf <<END
ClusterName=pipeshard
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=6817
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$PWD/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$PWD/state
SlurmdSpoolDir=$PWD/spool.%n
SlurmctldPidFile=$PWD/slurmctld.pid
SlurmdPidFile=$PWD/slurmd.%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/linear
SchedulerType=sched/builtin
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
SlurmdTimeout=${SLURMD_TIMEOUT:-300}
NodeName=n[1-$nodes] NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=[7001-$((7000 + nodes))] CPUs=$(nproc) State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
}

give_up() {
  echo "slurm.sh: $*" >&2
  tail -n 20 ./*.log >&2
  exit 1
}

wait_for() {
  local what=$1 end=$((SECONDS + 30))
  shift
  while [ "$SECONDS" -lt "$end" ]; do
    "$@" && return
    sleep 0.1
  done
  give_up "$what did not start within 30 seconds"
}

has_munge() { [ -S munge.socket ]; }
all_nodes_idle() { [ "$(timeout 5 sinfo --noheader --Node --format=%t 2>/dev/null | grep -c '^idle$')" -eq "$nodes" ]; }

start_slurm() {
  # Where there is nothing but loopback, the C library resolves no address to listen on, and mpirun does not start.
  ip link add slurm0 type veth peer name slurm1
  ip address add 192.0.2.1/24 dev slurm0
  ip link set slurm0 up
  ip link set slurm1 up
  mount -t tmpfs -o mode=0711,size=64m pipeshard-slurm /var/lib/munge
  cd /var/lib/munge
  { cat /etc/hosts; for ((i = 1; i <= nodes; ++i)); do echo "127.0.0.1 n$i"; done } >hosts
  mount --bind hosts /etc/hosts
  mkdir state
  write_configuration
  mungekey --create --keyfile="$PWD/munge.key"
  munged --foreground --key-file="$PWD/munge.key" --socket="$PWD/munge.socket" --pid-file="$PWD/munged.pid" \
    --seed-file="$PWD/munged.seed" --log-file="$PWD/munged.log" --num-threads=10 >munged.out.log 2>&1 &
  wait_for munged has_munge
  export SLURM_CONF=$PWD/slurm.conf
  slurmctld -D >slurmctld.log 2>&1 &
  local i
  for ((i = 1; i <= nodes; ++i)); do
    mkdir "spool.n$i"
    slurmd -D -N "n$i" >"slurmd.n$i.log" 2>&1 &
  done
  wait_for Slurm all_nodes_idle
}

[ $# -gt 0 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 64; }
for program in munged mungekey; do needs $program munge; done
for program in slurmctld slurmd salloc srun sinfo; do needs $program slurm-wlm; done
[ -d /var/lib/munge ] || skip "there is no folder /var/lib/munge (Debian package: munge)"
isolate "$@"
if [ "$1" = --nodes ]; then
  nodes=$2
  shift 2
fi
allocate=(salloc --quiet --nodes="$nodes")
if [ "$1" = --no-allocation ]; then  # the command asks for it
  allocate=()
  shift
fi
folder=$PWD
start_slurm
cd "$folder"
code=0
"${allocate[@]}" "$@" || code=$?
exit "$code"
