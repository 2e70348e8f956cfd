#!/usr/bin/env bash
# fuzz.py with a fuzzer that only says what libFuzzer says: runs add up, and what is found stays.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/fuzzer" <<'FUZZER'
#!/bin/sh
# of a merge: the inputs in the order of their sizes, each with the edges that it reaches first: its own digits
case "$1" in -merge=1)
  control=${2#-merge_control_file=}
  shift 7
  before=$(find "$1" -type f | wc -l)
  paths=$(find "$1" -type f; shift; find "$@" -type f | sort)
  { echo "$paths" | wc -l; echo "$before"; echo "$paths"; n=0
    for path in $paths; do echo "STARTED $n 1"; echo "FT $n 1 2"; echo "COV $n $(tr -cd '0-9 ' <"$path")"; n=$((n + 1)); done; } >"$control"
  exit ;;
esac
trap 'exit 0' USR1
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
mkdir -p "$folder"/tree/corpus/{cluster,control,kind,plan,ranks}
fuzz=("$here/fuzz.py" --fuzzer "$folder/fuzzer" --folder "$folder/kept" --tree "$folder/tree")
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

# SIGTERM ends a turn, which counts.
"${fuzz[@]}" --minutes 0.02 control >"$folder/said" & running=$!
until ls "$folder"/kept/control/input* >/dev/null 2>&1; do sleep 0.1; done
kill -TERM $running
wait $running || say "a run that is asked to end counts"
grep -q '^control .*clean$' "$folder/said" || say "a run that is asked to end is recorded"

# What is brought home: the inputs that reach most, within bounds, in place of those that were there; and the hours.
mkdir "$folder/tree/corpus/cluster/kept"
echo 1 >"$folder/tree/corpus/cluster/by_hand"
echo "1 1000" >"$folder/tree/corpus/cluster/kept/before"
head -c 200000 /dev/zero >"$folder/kept/cluster/large"
echo "1 2 3 4 5 6 7 8" >>"$folder/kept/cluster/large"
for i in $(seq 100); do echo "1 $i" >"$folder/kept/cluster/input$i"; done
echo "1 2 3 4" >"$folder/kept/cluster/best"
"${fuzz[@]}" --bring-home >"$folder/said" || say "bringing home ends with 0"
kept=("$folder"/tree/corpus/cluster/kept/*)
[ ${#kept[@]} -eq 40 ] || say "${#kept[@]} inputs were brought home, not 40"
grep -qx '1 2 3 4' "${kept[@]}" || say "what reaches most is brought home"
[ "$(cat "${kept[@]}" | wc -c)" -le 131072 ] || say "what is too large stays out"
[ ! -e "$folder/tree/corpus/cluster/kept/before" ] && [ -e "$folder/tree/corpus/cluster/by_hand" ] || say "inputs by hand stay"
summary=$("${fuzz[@]}" --summary)
grep -Eq '^cluster +0.00 +[2-9]00 +55 +0$' <<<"$summary" || say "the record at home counts"
"${fuzz[@]}" --bring-home >"$folder/said" || say "bringing home twice ends with 0"
[ "$("${fuzz[@]}" --summary)" = "$summary" ] || say "nothing counts twice"
