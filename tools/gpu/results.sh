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

# The chosen rows, by groups that need different things: each a process of this script, with a table of its own. Ends as the worst.
run_groups() {
  local group code worst=0 options=(--bundle "$bundle" --seconds "$seconds") groups=('machine|starts|kernels.*|record|conformance|fault-.*' 'validate-.*|structure-.*' 'sanitize-.*')
  [ -z "$results" ] || options+=(--results "$results")
  [ -z "$record" ] || options+=(--record "$record")
  [ -z "$keep" ] || options+=(--keep "$keep")
  [ -z "$standin" ] || options+=(--standin "$standin")
  local processes=()
  for group in "${!groups[@]}"; do
    local inside
    inside=$(for name in "${names[@]}"; do [[ ! $name =~ ^(${groups[group]})$ ]] || echo "$name"; done | paste -sd '|')
    [ -n "$inside" ] || continue
    bash "$here/gpu_check.sh" "${options[@]}" --rows "$inside" >"$work/group-$group" 2>&1 </dev/null &
    processes+=($!)
  done
  for group in "${processes[@]}"; do
    code=0
    wait "$group" || code=$?
    [ $code -eq 0 ] || [ $worst -eq 1 ] || worst=$code
  done
  cat "$work"/group-*
  return $worst
}

# merge_result FILE NAME: the row of this name and device is replaced, others stay as they are. One process at a time.
merge_result() {
  (
    flock 8
    merge_locked "$@"
  ) 8<"$here/gpu_check.sh"
}

merge_locked() {
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
