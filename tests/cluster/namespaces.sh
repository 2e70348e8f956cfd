# shellcheck shell=bash
# Two hosts on one machine: network namespaces of which each has one end of a cable (a veth pair). To be sourced after isolate.sh, and
# used inside, so that nothing of it stays:
#
#   isolate "$@"
#   make_hosts                       # 192.0.2.1 is on host 0, 192.0.2.2 on host 1
#   on_host 0 ip address             # runs a command there
#   cut_cable                        # packets vanish in both directions, and no reset tells of it; plug_cable undoes it
#   slow_cable 10mbit                # both directions; `slow_cable none` undoes it

on_host() { ip netns exec "host$1" "${@:2}"; }

has_carrier() { on_host "$1" ip -o link show "cable$1" | grep -q LOWER_UP; }

make_hosts() {
  needs tc iproute2
  mkdir -p /run/netns
  mount -t tmpfs none /run/netns  # names of this test only
  local host
  for host in 0 1; do
    ip netns add host$host
    on_host $host ip link set lo up
  done
  ip link add cable0 netns host0 type veth peer name cable1 netns host1 || skip "no veth pairs can be made here"
  for host in 0 1; do
    on_host $host ip address add "192.0.2.$((host + 1))/24" dev cable$host
    on_host $host ip link set cable$host up
  done
  until has_carrier 0 && has_carrier 1; do sleep 0.02; done
}

cut_cable() { on_host 1 ip link set cable1 down; }
plug_cable() { on_host 1 ip link set cable1 up; }

slow_cable() {
  local host
  for host in 0 1; do
    on_host $host tc qdisc delete dev cable$host root 2>/dev/null || true
    [ "$1" = none ] || on_host $host tc qdisc add dev cable$host root tbf rate "$1" burst 32kb latency 200ms
  done
}
