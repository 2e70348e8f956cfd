# Sourced by the scripts of this folder, from the root of the checkout.

say() { printf '== %s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# A service or a container may start without HOME; the shell then asks the system. CMake and ccache read it too.
if [ -z "${HOME:-}" ]; then
  unset HOME
  HOME=~
  export HOME
fi
cache="${XDG_CACHE_HOME:-$HOME/.cache}/pipeshard"
mkdir -p "$cache" && [ -w "$cache" ] || die "$cache cannot be written; set XDG_CACHE_HOME to a folder that can be"

log=$(mktemp "${TMPDIR:-/tmp}/pipeshard-setup.XXXXXX.log") || die "TMPDIR (${TMPDIR:-/tmp}) cannot be written"
work=""  # a scratch folder, gone at the end however it comes
trap 'status=$?; [ -z "$work" ] || rm -rf "$work"; { [ $status -ne 0 ] && [ -s "$log" ]; } || rm -f "$log"' EXIT  # the log is kept for what went wrong

show_log_and_die() {
  tail -n 40 "$log" >&2
  die "$1; the whole log is in $log"
}

# Prints the root of a CUDA Toolkit 13 with cuBLASLt: nvcc's on PATH, the usual folder, or what `setup.sh --cuda-tests` fetched.
# Prints nothing where there is none.
cuda_cache="$cache/cuda-13.0"
cuda_toolkit() {
  local nvcc root
  for nvcc in "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc "$cuda_cache/nvidia/cu13/bin/nvcc"; do
    [ -x "$nvcc" ] || continue
    root=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    [ -e "$root/include/cublasLt.h" ] && "$nvcc" --version | grep -q 'release 13\.' || continue
    printf '%s\n' "$root"
    return
  done
}

# build PRESET TARGET...: configures and builds into build/PRESET; cmake_options: more of CMake's, if it is set.
build() {
  local preset=$1
  shift
  cmake --preset "$preset" -Wno-dev ${cmake_options[@]+"${cmake_options[@]}"} >"$log" 2>&1 || show_log_and_die "configuring failed"
  say "building ($preset)"
  cmake --build --preset "$preset" --target "$@" >"$log" 2>&1 || show_log_and_die "building failed"
}
