#!/usr/bin/env bash
# fuzz.py with a fuzzer that only says what libFuzzer says: runs add up, and what is found stays.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/fuzzer" <<'FUZZER'
#!/bin/sh
echo x >"$1/input$$"
echo "#100 DONE cov: 55 ft: 1"
echo "stat::number_of_executed_units: 100"
# as UBSan does
if [ "$PIPESHARD_FUZZ_TARGET" = kind ]; then
  echo "reader.cc:7:3: runtime error: signed integer overflow" >&2
  case ":$UBSAN_OPTIONS:" in *:halt_on_error=1:*) exit 1 ;; esac
fi
[ "$PIPESHARD_FUZZ_TARGET" != plan ] || { echo "==1==ERROR: AddressSanitizer: heap-use-after-free" >&2; exit 77; }
python3 -c 'import time; end = time.process_time() + 1.2
while time.process_time() < end: pass'
FUZZER
chmod +x "$folder/fuzzer"
fuzz=("$here/fuzz.py" --fuzzer "$folder/fuzzer" --folder "$folder/kept")
say() { echo "FAILED: $1"; cat "$folder/said"; exit 1; }
"${fuzz[@]}" --minutes 0.04 cluster ranks >"$folder/said" || say "clean runs end with 0"
"${fuzz[@]}" --minutes 0.02 cluster >"$folder/said" || say "clean runs end with 0"
code=0
"${fuzz[@]}" --minutes 0.02 plan >"$folder/said" || code=$?
[ $code -eq 1 ] && grep -q 'plan .*ERROR: AddressSanitizer: heap-use-after-free' "$folder/said" || say "a finding is 1, with its reason"
grep -q heap-use "$folder"/kept/findings/plan-*.log || say "what was found stays"
code=0
"${fuzz[@]}" --minutes 0.02 kind >"$folder/said" || code=$?
[ $code -eq 1 ] && grep -q 'kind .*runtime error: signed integer overflow' "$folder/said" || say "what UndefinedBehaviorSanitizer says is a finding"
"${fuzz[@]}" --summary >"$folder/said"
grep -Eq '^cluster +0.00 +[2-9]00 +55 +0$' "$folder/said" || say "executions add up"
grep -Eq '^plan +0.00 +100 +55 +1$' "$folder/said" || say "findings are counted"
grep -q ' 2 runs that found something' "$folder/said" || say "findings are counted in all"
[ "$(ls "$folder/kept/cluster" | wc -l)" -ge 2 ] || say "inputs are kept"
