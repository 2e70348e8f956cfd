# Sourced by the scripts of this folder, from the root of the checkout.

cache="${XDG_CACHE_HOME:-$HOME/.cache}/pipeshard"
log=$(mktemp "${TMPDIR:-/tmp}/pipeshard-setup.XXXXXX.log")

trap '[ $? -ne 0 ] || rm -f "$log"' EXIT  # kept only for what went wrong

say() { printf '== %s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

show_log_and_die() {
  tail -n 40 "$log" >&2
  die "$1; the whole log is in $log"
}

# build PRESET TARGET...: configures and builds into build/PRESET.
build() {
  local preset=$1
  shift
  cmake --preset "$preset" -Wno-dev >"$log" 2>&1 || show_log_and_die "configuring failed"
  say "building ($preset)"
  cmake --build --preset "$preset" --target "$@" >"$log" 2>&1 || show_log_and_die "building failed"
}
