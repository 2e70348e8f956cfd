#!/usr/bin/env bash
# Format and static analysis.
#
#   tools/lint.sh          the format of every C++ file, the syntax of every shell script, clang-tidy on changed files
#   tools/lint.sh --all    clang-tidy on every file (about ten seconds each)
#   tools/lint.sh --fix    formats the C++ files first
#
# Changed: against the commit where this branch left its upstream, or against the last commit where there is none.
set -euo pipefail
cd "$(dirname "$0")/.."

all=no fix=no
for argument in "$@"; do
  case "$argument" in
    --all) all=yes ;;
    --fix) fix=yes ;;
    *) echo "unknown option '$argument'; see the head of this file" >&2; exit 64 ;;
  esac
done

say() { printf '== %s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

missing=()
for tool in clang-format clang-tidy; do command -v "$tool" >/dev/null || missing+=("$tool"); done
[ ${#missing[@]} -eq 0 ] || die "not installed: ${missing[*]}; on Debian: apt-get install ${missing[*]}"

# Tracked files and new ones that are not ignored, as far as they exist.
sources() { git ls-files -z --cached --others --exclude-standard -- "$@" | while IFS= read -r -d '' file; do [ ! -f "$file" ] || echo "$file"; done; }

changed_since() { { git diff --name-only --diff-filter=d "$1" && git ls-files --others --exclude-standard; } | sort -u; }

base=$(git merge-base HEAD '@{upstream}' 2>/dev/null || echo HEAD)
mapfile -t cpp < <(sources '*.cc' '*.h')
mapfile -t scripts < <(sources '*.sh' .ci/run)
failed=()

if [ $fix = yes ]; then
  say "formatting ${#cpp[@]} files"
  clang-format -i "${cpp[@]}"
fi
say "format of ${#cpp[@]} files"
unformatted=$(clang-format --dry-run -Werror "${cpp[@]}" 2>&1 | grep ': error:' | cut -d: -f1 | sort | uniq -c) || true
[ -z "$unformatted" ] || failed+=("format (places, file); 'tools/lint.sh --fix' repairs them:
$unformatted")

say "syntax of ${#scripts[@]} shell scripts"
for script in "${scripts[@]}"; do bash -n "$script" || failed+=("shell: $script"); done

# A changed header is seen through the sources that include it directly.
to_analyse() {
  if [ $all = yes ]; then
    printf '%s\n' "${cpp[@]}" | grep '\.cc$'
    return
  fi
  local file
  changed_since "$base" | while IFS= read -r file; do
    case "$file" in
      *.cc) echo "$file" ;;
      *.h) grep -lF "#include \"$file\"" -- "${cpp[@]}" | grep '\.cc$' || true ;;
    esac
  done | sort -u
}

# Every source by itself: builds compile the sources of a folder together.
database=build/lint/compile_commands.json
cmake --preset lint -Wno-dev >/dev/null || die "configuring failed; tools/setup.sh installs what is needed"
mapfile -t wanted < <(to_analyse)
mapfile -t analysed < <(for file in "${wanted[@]}"; do ! grep -qF "\"file\": \"$PWD/$file\"" "$database" || echo "$file"; done)
if [ ${#analysed[@]} -lt ${#wanted[@]} ]; then
  failed+=("clang-tidy: $database lacks these files; list them in a CMakeLists.txt:
$(comm -23 <(printf '%s\n' "${wanted[@]}" | sort) <(printf '%s\n' "${analysed[@]}" | sort) | sed 's/^/    /')")
fi
say "clang-tidy on ${#analysed[@]} files"
if [ ${#analysed[@]} -gt 0 ]; then
  # Options that only GCC knows would be errors here, and end the analyzer's part unseen.
  mkdir -p build/lint/tidy
  sed -E 's/ (-Wno-restrict|-fno-loop-unroll-and-jam)\b//g' "$database" >build/lint/tidy/compile_commands.json
  printf '%s\0' "${analysed[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p build/lint/tidy 2>/dev/null ||
    failed+=("clang-tidy: each message ends with the name of its check; repair the code, or say on the line why not: // NOLINT(check): reason")
fi

if [ ${#failed[@]} -gt 0 ]; then
  printf '\nFAILED %s\n' "${failed[@]}" >&2
  exit 1
fi
say "clean"
