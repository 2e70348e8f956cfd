# shellcheck shell=bash
# Runs a test in process, network and mount namespaces of its own: it meets no other test and no daemon of this machine, listens on
# none of its addresses, and whatever it starts or mounts goes away with it, however it ends, SIGKILL included. To be sourced:
#
#   source "$(dirname "$0")/isolate.sh"
#   needs ip iproute2                # skips (exit code 77, with a reason) where the program is missing; names the Debian package
#   isolate "$@"                     # starts this script again inside, and exits with its exit code; inside, goes on
#
# Inside there are loopback (up), an empty /dev/shm, and this machine's files. The script is process 1 there: when it ends, the kernel
# ends all others.

skip() {
  echo "skipped: $*" >&2
  exit 77
}

needs() { command -v "$1" >/dev/null || skip "there is no $1 (Debian package: $2)"; }

isolate() {
  if [ -n "${PIPESHARD_ISOLATED:-}" ]; then
    unset PIPESHARD_ISOLATED
    ip link set lo up
    mount -t tmpfs none /dev/shm
    return
  fi
  needs unshare util-linux
  needs setpriv util-linux
  needs ip iproute2
  needs mount mount
  [ "$(id -u)" -eq 0 ] || skip "only root can do this in namespaces of its own"
  local namespaces=(unshare --pid --fork --kill-child --mount-proc --mount --net)
  "${namespaces[@]}" true 2>/dev/null || skip "no process, network and mount namespaces can be made here"
  # In the background, so that signals reach this shell at once; killed by the kernel if this shell is.
  PIPESHARD_ISOLATED=1 setpriv --pdeathsig KILL "${namespaces[@]}" "$BASH" "$0" "$@" &
  local inside=$! code=0
  trap 'kill -KILL "$inside" 2>/dev/null; exit 143' TERM
  trap 'kill -KILL "$inside" 2>/dev/null; exit 130' INT
  trap 'kill -KILL "$inside" 2>/dev/null; exit 129' HUP
  wait "$inside" || code=$?
  exit "$code"
}
