# Sourced by gpu_check.sh: one row run, or groups of rows side by side, and results kept.

# run_row NAME LIMIT LEFT: sets verdict (passed, FAILED, not run), what, took.
run_row() {
  local limit=$2 code=0 start=$SECONDS
  what="" took=0 verdict="not run"
  if [ "$3" -lt 5 ]; then
    what="the time of the whole check was over"
    return
  fi
  [ "$limit" -le "$3" ] || limit=$3
  : >"$work/note"
  rm -f "$work/standin.log"
  timeout -k 5 "$limit" bash "$here/gpu_check.sh" --one "$1" >"$work/$1.log" 2>&1 </dev/null || code=$?
  took=$((SECONDS - start))
  what=$(tail -n 1 "$work/note")
  case $code in
    0) verdict=passed ;;
    77) verdict="not run" ;;
    124 | 137) verdict=FAILED what="it took longer than $limit s" ;;
    *) verdict=FAILED what=${what:-"code $code"} ;;
  esac
  if [ -s "$work/standin.log" ] && grep -q '^stand-in:' "$work/standin.log"; then
    verdict=FAILED
    what=$(grep -m 1 '^stand-in:' "$work/standin.log")
  fi
}

# The chosen rows, by groups that need different things: each a process of this script, which prints its rows as they end and leaves
# its counts. The first alone: it reads what the others would wait for. Ends as the worst.
run_groups() {
  local group code worst=0 options=(--bundle "$bundle") groups=('machine|starts' 'kernels.*|record|conformance|fault-.*' 'validate-.*|structure-.*' 'sanitize-.*')
  [ -z "$results" ] || options+=(--results "$results")
  [ -z "$record" ] || options+=(--record "$record")
  [ -z "$keep" ] || options+=(--keep "$keep")
  [ -z "$standin" ] || options+=(--standin "$standin")
  print_head
  local processes=()
  for group in "${!groups[@]}"; do
    local inside
    inside=$(for name in "${names[@]}"; do [[ ! $name =~ ^(${groups[group]})$ ]] || echo "$name"; done | paste -sd '|')
    [ -n "$inside" ] || continue
    counts_of_group=$work/counts-$group bash "$here/gpu_check.sh" "${options[@]}" --seconds $((seconds - SECONDS)) --rows "$inside" </dev/null &
    if [ "$group" -gt 0 ]; then processes+=($!); else wait $! || worst=$?; fi
  done
  for group in "${processes[@]}"; do
    code=0
    wait "$group" || code=$?
    [ $code -eq 0 ] || [ $worst -eq 1 ] || worst=$code
  done
  print_end "$(cat "$work"/counts-* | awk '{passed += $1; failed += $2; not_run += $3} END {printf "%d passed, %d failed, %d could not run", passed, failed, not_run}')"
  return $worst
}

print_head() { printf '%s, commit %s\n\n%-30s %-8s %8s  %s\n' "$device" "$commit" row result seconds what; }

# print_end COUNTS
print_end() {
  printf '\n%s, in %d s\n' "$1" $SECONDS
  [ -z "$results" ] || echo "the results are in $results"
}

# One process at a time, of those that share a folder of results and a standard output.
alone() {
  (
    flock 8
    "$@"
  ) 8<"$here/gpu_check.sh"
}

# print_row NAME: of a row that has failed, the end of its output too.
print_row() {
  printf '%-30s %-8s %8s  %s\n' "$1" "$verdict" "$took" "$what"
  [ "$verdict" != FAILED ] || [ ! -e "$work/$1.log" ] || tail -n 15 "$work/$1.log" | sed 's/^/    | /'
}

# keep_log NAME: behind those that are there, in one file of 16 MiB at most; of a longer one, how it begins and how it ends.
keep_log() {
  local log=$work/$1.log all=$keep/rows.log most=2000000
  [ -e "$log" ] || return 0
  [ ! -e "$all" ] || [ "$(stat -c %s "$all")" -lt 12000000 ] || most=100000
  printf '== %s: %s\n' "$1" "$verdict" >>"$all"
  if [ "$(stat -c %s "$log")" -le $most ]; then
    cat "$log" >>"$all"
  else
    { head -c $((most / 2)) "$log" && printf '\n...\n' && tail -c $((most / 2)) "$log"; } >>"$all"
  fi
}

# merge_result FILE NAME: the row of this name and device is replaced, others stay as they are.
merge_result() {
  local file=$1 line
  line="| $2 | $verdict | ${what//|/,} | $took | $commit | $(date -u +%F) | $device | $driver |"
  if [ ! -e "$file" ]; then
    printf '# Results on GPUs\n\n%s\n%s\n' '| row | result | what | seconds | commit | date | device | driver |' '|---|---|---|---|---|---|---|---|' >"$file"
  fi
  awk -F ' *[|] *' -v name="$2" -v device="$device" -v line="$line" -v nobody='^No GPU has run any of this yet' '
    /^[|]---/ { table = 1 }
    table && $2 == name && $8 == device { print line; found = 1; next }
    $0 ~ nobody && device != "stand-in" { next }
    table && !found && $0 !~ /^[|]/ { print line; found = 1 }
    { print }
    END { if (!found) print line }' "$file" >"$work/merged" && cp "$work/merged" "$file"
}
