#!/usr/bin/env bash
# A job on two hosts that a cable joins (namespaces.sh): coordinator and node 0 on host 0, node 1 on host 1.
#
#   tests/cluster/link_test.sh PIPESHARD validate      passes, and tensors go through the cable
#   tests/cluster/link_test.sh PIPESHARD cut           the cable is cut: exit code 69 within 15 seconds, with node 1 as the cause
#   tests/cluster/link_test.sh PIPESHARD glitch        the cable is cut for 6 s: with --patience 30 the job goes on, and its losses are those of one without
#   tests/cluster/link_test.sh PIPESHARD slow          a cable of 10 Mbit/s only makes it slower
#   tests/cluster/link_test.sh PIPESHARD lossy         a cable that loses one packet in a hundred, too; nobody is taken for dead, and losses stay
#   tests/cluster/link_test.sh PIPESHARD secret        gradients that go through the cable cannot be read there; with --data-plane private they can
set -euo pipefail
here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
source "$here/isolate.sh"
source "$here/namespaces.sh"
needs pgrep procps
isolate "$@"
pipeshard=$(realpath "$1")
cd "$here/../.."
make_hosts
mount -t tmpfs none /mnt  # in this test's namespace only
folder=/mnt
key=$folder/job.key

die() {
  echo "FAILED: $*" >&2
  tail -n 20 $folder/*.err >&2
  exit 1
}

now() { date +%s%N; }
milliseconds_since() { echo $((($(now) - $1) / 1000000)); }

# start_job COMMAND...: the coordinator and both nodes; their process ids are in `coordinator` and `nodes`.
start_job() {
  on_host 0 "$pipeshard" "$@" --listen tcp://192.0.2.1:7000 --key-file $key --node-timeout 20 >$folder/job.out 2>$folder/job.err &
  coordinator=$!
  nodes=()
  local host
  for host in 0 1; do
    on_host $host "$pipeshard" node --key-file $key --index $host --wait 20 >$folder/node$host.out 2>$folder/node$host.err &
    nodes+=($!)
  done
}

# expect_end PID CODE NAME
expect_end() {
  local code=0
  wait "$1" || code=$?
  [ $code -eq "$2" ] || die "$3 ended with $code, not $2"
}

end_well() {
  expect_end "$coordinator" 0 "the coordinator"
  expect_end "${nodes[0]}" 0 "node 0"
  expect_end "${nodes[1]}" 0 "node 1"
}

plan() {
  "$pipeshard" plan examples/gpt2.onnx --cluster 2x2 --stages uniform:4 --microbatches 4 -o $folder/plan >/dev/null
}

test_validate() {
  plan
  start_job validate $folder/plan --steps 3
  end_well
  grep -q '^PASS' $folder/job.out || die "no PASS"
  local bytes
  bytes=$(on_host 0 cat /sys/class/net/cable0/statistics/tx_bytes)
  [ "$bytes" -gt 100000 ] || die "only $bytes bytes went through the cable"
  grep '^PASS' $folder/job.out
  echo "$bytes bytes went from host 0 to host 1"
}

test_cut() {
  plan
  start_job run $folder/plan --steps 10000000
  wait_for_step
  sleep 0.5
  local start cause
  start=$(now)
  cut_cable
  expect_end "$coordinator" 69 "the coordinator"
  local seconds_of_coordinator
  seconds_of_coordinator=$(milliseconds_since "$start")
  expect_end "${nodes[0]}" 69 "node 0"
  expect_end "${nodes[1]}" 69 "node 1"
  local all
  all=$(milliseconds_since "$start")
  [ "$all" -lt 15000 ] || die "it took $all ms until all had ended"
  cause=$(grep '^pipeshard:' $folder/job.err) || die "no cause"
  [ "$(wc -l <<<"$cause")" -eq 1 ] || die "more than one cause"
  [[ $cause == *"node 1 (host "*"network between is cut"* ]] || die "the cause is not node 1: $cause"
  [[ $cause == *" at 192.0.2.2, pid "* ]] || die "two hosts have one name, and are not told apart: $cause"
  grep -q 'network between is cut; the workers here were ended' $folder/node1.err || die "node 1 does not tell why it ended"
  [ "$(pgrep -c -f ' worker ' || true)" -eq 0 ] || die "workers are left: $(pgrep -a -f ' worker ')"
  echo "the coordinator ended $seconds_of_coordinator ms after the cut, everything after $all ms:"
  echo "$cause"
}

wait_for_step() {
  local tries
  for ((tries = 0; ; ++tries)); do
    grep -q '^step' $folder/job.out && break
    [ $tries -lt 600 ] || die "no step within 60 seconds"
    sleep 0.1
  done
}

test_glitch() {
  plan
  start_job run $folder/plan --steps 1500 --seed 5
  end_well
  mv $folder/job.out $folder/calm.out
  start_job run $folder/plan --steps 1500 --seed 5 --patience 30
  wait_for_step
  local start
  start=$(now)
  cut_cable
  sleep 6
  plug_cable
  end_well
  local losses='loss [0-9.]* -> [0-9.]*'
  [ "$(grep -o "$losses" $folder/job.out)" = "$(grep -o "$losses" $folder/calm.out)" ] || die "other losses than without the cut"
  grep -q 'node 1 .* has not answered for 4 s; the job waits for it (--patience 30)' $folder/job.err || die "the cut was not said"
  grep -q 'node 1 .* answers again' $folder/job.err || die "its end was not said"
  echo "cut for 6 s; the job ended $(milliseconds_since "$start") ms after the cut: $(grep -o "$losses" $folder/job.out)"
}

test_slow() {
  plan
  local start fast slow
  start=$(now)
  start_job run $folder/plan --steps 20
  end_well
  fast=$(milliseconds_since "$start")
  slow_cable 10mbit
  start=$(now)
  start_job run $folder/plan --steps 20
  end_well
  slow=$(milliseconds_since "$start")
  [ "$slow" -gt $((fast + 500)) ] || die "$slow ms on the slow cable, $fast ms on the fast one: did anything go through it?"
  slow_cable 4mbit
  start_job validate $folder/plan --steps 2
  end_well
  grep -q '^PASS' $folder/job.out || die "no PASS"
  echo "20 steps: $fast ms, at 10 Mbit/s $slow ms"
}

test_lossy() {
  plan
  start_job run $folder/plan --steps 100 --seed 5
  end_well
  mv $folder/job.out $folder/calm.out
  "$here/lossy_cable.py" 1 >$folder/cable.out &
  local cable=$! start
  until [ -s $folder/cable.out ]; do sleep 0.05; done
  if grep -q skipped $folder/cable.out; then skip "$(cat $folder/cable.out)"; fi
  start=$(now)
  start_job run $folder/plan --steps 100 --seed 5
  end_well
  local milliseconds
  milliseconds=$(milliseconds_since "$start")
  kill $cable
  wait $cable || die "the cable ended with an error"
  local losses='loss [0-9.]* -> [0-9.]*' lost
  lost=$(grep -o 'lost [0-9]* of [0-9]*' $folder/cable.out) || die "the cable does not say what it lost"
  [[ $lost != "lost 0 of"* ]] || die "nothing was lost"
  [ "$(grep -o "$losses" $folder/job.out)" = "$(grep -o "$losses" $folder/calm.out)" ] || die "other losses than without"
  if grep -q 'has not answered' $folder/job.err; then die "a node was missed"; fi
  echo "100 steps in $milliseconds ms on a cable that $lost packets: $(grep -o "$losses" $folder/job.out)"
}

# validate_captured PLANE: the samples of gradients that were read on the cable, "0 of 123"
validate_captured() {
  rm -rf $folder/dump $folder/captured $folder/ready
  ip netns exec host0 "$here/sniff.py" capture cable0 $folder/captured >$folder/ready &
  local sniffer=$!
  until [ -s $folder/ready ]; do sleep 0.05; done
  if grep -q skipped $folder/ready; then skip "$(cat $folder/ready)"; fi
  start_job validate $folder/plan --steps 2 --dump $folder/dump --data-plane "$1"
  end_well
  kill $sniffer
  wait $sniffer || die "nothing was captured"
  "$here/sniff.py" search $folder/captured $folder/dump
}

# Data parallel: the sums of gradients go through the cable as they are in the dumps.
test_secret() {
  "$pipeshard" plan examples/mlp.onnx --cluster 2x1 --stages uniform:1 -o $folder/plan >/dev/null
  local open encrypted
  open=$(validate_captured private)
  encrypted=$(validate_captured curve)
  echo "samples of gradients on the cable: $open with --data-plane private, $encrypted encrypted"
  [ "${open%% *}" -gt 0 ] || die "not even what is not encrypted was found: $open"
  [ "${encrypted%% *}" -eq 0 ] || die "gradients can be read on the cable: $encrypted"
}

"test_$2"
