#!/usr/bin/env bash
# Checks the CUDA workers on this machine's GPU, row by row, and prints the table as it grows.
#
#   gpu-bundle/tools/gpu_check.sh                          in an unpacked bundle (tools/gpu_bundle.sh): every row, 9 minutes at most
#   tools/gpu_check.sh --bundle build/gpu-bundle.tar.xz    the same from a checkout; docs/gpu-results.md gets the results
#
#   --rows REGEX       the rows whose whole name it is, e.g. 'kernels|validate-.*'; --list prints the names
#   --results FILE     where the results are merged into (default: docs/gpu-results.md of the checkout; in a bundle, gpu-results.md)
#   --record FILE      where the calls of NVIDIA's libraries are kept that the row 'record' has made, for CI to replay (default:
#                      tests/standin/recorded_calls.safetensors of the checkout; in a bundle, recorded_calls.safetensors)
#   --keep FOLDER      the results, the record and the rows' outputs go there, as gpu-results.md, recorded_calls.safetensors and
#                      rows.log ("== NAME: RESULT" before each row's): for a machine from which a folder of few files comes back
#   --at-once          three groups of rows side by side (tests, models, sanitizers), where there are processors for it
#   --seconds N        of the whole check (540)
#   --standin FOLDER   on the stand-in of NVIDIA's libraries that is built there (tests/standin); no results are kept but with --results
#
# A row passes, fails, or cannot run and says why: that is no pass. Code 0: every row has passed; 1: one has failed; 77: none has
# failed, and not every one could run. Each row is a process of its own with a time limit (gpu/rows.sh).
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/gpu/rows.sh"
source "$here/gpu/results.sh"

if [ "${1:-}" = --one ]; then  # this script's own: the process of a row
  set -e
  case $2 in machine | starts) ;; *) [ "$device" != "no GPU" ] || cannot_run "there is no GPU" ;; esac
  "row_${2//-/_}"
  exit
fi

bundle="" chosen='.*' results="" seconds=540 standin="" record="" keep="" at_once=""
while [ $# -gt 0 ]; do
  case $1 in
    --list) printf '%s\n' "${rows[@]}" | cut -d' ' -f1 && exit ;;
    --at-once) at_once=yes && shift ;;
    --bundle | --rows | --results | --record | --keep | --seconds | --standin)
      [ $# -ge 2 ] || { echo "error: $1 needs a value; see the head of this file" >&2; exit 64; }
      case $1 in
        --bundle) bundle=$2 ;;
        --rows) chosen=$2 ;;
        --results) results=$(realpath -m "$2") ;;
        --record) record=$(realpath -m "$2") ;;
        --keep) keep=$(realpath -m "$2") ;;
        --seconds) seconds=$2 ;;
        --standin) standin=$(realpath -m "$2") ;;
      esac
      shift 2
      ;;
    *) echo "error: unknown option '$1'; see the head of this file" >&2 && exit 64 ;;
  esac
done

names=() limits=()
for row in "${rows[@]}"; do
  read -r name limit <<<"$row"
  [[ $name =~ ^($chosen)$ ]] || continue
  names+=("$name") limits+=("$limit")
done
[ ${#names[@]} -gt 0 ] || { echo "error: no row is called '$chosen'; --list prints the names" >&2; exit 64; }

work=$(mktemp -d "${TMPDIR:-/tmp}/pipeshard-gpu-check.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$(dirname "$here")
if [ -z "$bundle" ] && [ -e "$root/MANIFEST" ]; then bundle=$root; fi
[ -n "$bundle" ] && [ -e "$bundle" ] || { echo "error: there is no bundle; tools/gpu_bundle.sh makes one, --bundle names it" >&2; exit 66; }
if [ -f "$bundle" ]; then
  tar -C "$work" -xf "$bundle" 2>"$work/tar" ||
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$bundle" "$work" || { echo "error: $bundle cannot be unpacked" >&2; exit 66; }
  bundle=$work/gpu-bundle
fi
export bundle work standin
find_libraries
describe_machine
if [ -z "$standin" ] && [ "$device" != "no GPU" ]; then
  checkout_docs=$root checkout_standin=$root
  [ ! -d "$root/docs" ] || checkout_docs=$root/docs
  [ ! -d "$root/tests/standin" ] || checkout_standin=$root/tests/standin
  results=${results:-${keep:-$checkout_docs}/gpu-results.md}
  record=${record:-${keep:-$checkout_standin}/recorded_calls.safetensors}
fi
if [ -n "$keep" ]; then
  mkdir -p "$keep"
  # what has been there before is kept in it
  [ -e "$keep/gpu-results.md" ] || [ ! -e "$root/docs/gpu-results.md" ] || cp "$root/docs/gpu-results.md" "$keep/"
fi
# The driver starts a GPU anew whenever its first process comes; an open file keeps it up between the rows.
[ ! -r /dev/nvidia0 ] || exec 9</dev/nvidia0
if [ -n "$at_once" ]; then
  SECONDS=0
  run_groups
  exit
fi

passed=0 failed=0 not_run=0
SECONDS=0
[ -n "${counts_of_group:-}" ] || print_head
for i in "${!names[@]}"; do
  run_row "${names[i]}" "${limits[i]}" $((seconds - SECONDS))
  case $verdict in
    passed) passed=$((passed + 1)) ;;
    FAILED) failed=$((failed + 1)) ;;
    *) not_run=$((not_run + 1)) ;;
  esac
  alone print_row "${names[i]}"
  [ -z "$keep" ] || alone keep_log "${names[i]}"
  [ -z "$results" ] || alone merge_result "$results" "${names[i]}"
  if [ "${names[i]}" = record ] && [ "$verdict" = passed ] && [ -n "$record" ]; then
    cp "$work/recorded_calls.safetensors" "$record" && echo "  the calls are in $record"
  fi
done
if [ -n "${counts_of_group:-}" ]; then  # run_groups adds them up
  echo $passed $failed $not_run >"$counts_of_group"
else
  print_end "$passed passed, $failed failed, $not_run could not run"
fi
[ $failed -eq 0 ] || exit 1
[ $not_run -eq 0 ] || exit 77
