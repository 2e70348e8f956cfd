#!/usr/bin/env bash
# Builds the fuzzer of the readers (preset fuzz: clang, AddressSanitizer, UndefinedBehaviorSanitizer) and runs it on every target.
#
#   tests/fuzz/fuzz.sh [SECONDS [TARGET...]]    so long each (60), all targets or these
#
# What is found stays: new inputs in ~/.cache/pipeshard/fuzz/TARGET, from which the next run goes on; those that end a reader in
# ~/.cache/pipeshard/fuzz/findings, each with its output. Such a one belongs into corpus/TARGET with the fix, where ctest replays it.
# Per target: executions, covered edges, and seconds. Exit code: 0; 1 when something was found; 77 without clang.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v clang++ >/dev/null || { echo "skipped: there is no clang++ (Debian packages: clang libclang-rt-dev)"; exit 77; }
seconds=${1:-60}
shift || true
fuzzer=${PIPESHARD_FUZZER:-build/fuzz/tests/fuzz/pipeshard_fuzzer}
if [ -z "${PIPESHARD_FUZZER:-}" ]; then
  cmake --preset fuzz >/dev/null
  cmake --build --preset fuzz
fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/pipeshard/fuzz
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(ls tests/fuzz/corpus)
mkdir -p "$cache/findings"
found=0
for target in "${targets[@]}"; do
  mkdir -p "$cache/$target"
  log=$cache/$target.log
  code=0
  # ONNX's library comes without the sanitizers' marks on containers.
  PIPESHARD_FUZZ_TARGET=$target ASAN_OPTIONS=detect_container_overflow=0:allocator_may_return_null=0 nice -n 10 "$fuzzer" \
    "$cache/$target" "tests/fuzz/corpus/$target" -max_total_time="$seconds" -max_len=65536 -timeout=20 -rss_limit_mb=4096 \
    -artifact_prefix="$cache/findings/$target-" -print_final_stats=1 >"$log" 2>&1 || code=$?
  executions=$(sed -n 's/^stat::number_of_executed_units: //p' "$log")
  edges=$(grep -o 'cov: [0-9]*' "$log" | tail -n 1 || true)
  printf '%-12s %10s executions, %s edges, %s s: %s\n' "$target" "${executions:-?}" "${edges#cov: }" "$seconds" \
    "$([ $code -eq 0 ] && echo clean || grep -m 1 -E 'ERROR:|a bug:|not an Error:|runtime error:' "$log" || echo "ended with $code, see $log")"
  [ $code -eq 0 ] || found=1
done
exit $found
