#!/usr/bin/env bash
# Builds parts of the tree with sanitizers and runs their tests.
#
#   tools/sanitize.sh asan [PART...]    the whole suite, or some of its folders (tests/PART)
#   tools/sanitize.sh tsan [PART...]    transport, runtime and planning, or some of the folders
#
# The transport's own parts control and wire may be named, too.
# asan: AddressSanitizer and UndefinedBehaviorSanitizer; tsan: ThreadSanitizer. Prints a row per part, why tests were left out, and
# those that failed; what they said is in build/PRESET/sanitize-PART.xml. JOBS: how many run at once (all processors).
# Exit code: 0; 1 when a test failed, or a part has none.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/lib.sh

preset=${1:-}
case "$preset" in asan | tsan) shift ;; *) die "expected asan or tsan, then parts; see the head of this file" ;; esac
parts=("$@")
if [ ${#parts[@]} -eq 0 ]; then
  parts=(control wire transport runtime planning)
  [ "$preset" = tsan ] || parts+=(ir onnx_import sharding partition tools recovery cluster fuzz same_results oracle)
fi
targets=()
for part in "${parts[@]}"; do
  case "$part" in
    control) targets+=(control_test control_abuse_test) ;;
    wire) targets+=(wire_test) ;;
    *)
      [ -e "tests/$part/CMakeLists.txt" ] || die "unknown part '$part'; see the head of this file"
      targets+=("tests/$part/all" pipeshard)
      ;;
  esac
done
cmake_options=(-DPIPESHARD_CUDA=OFF)
build "$preset" "${targets[@]}"

# What a sanitizer finds ends the test. ONNX's library comes without marks on its containers.
export ASAN_OPTIONS=detect_container_overflow=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=suppressions=$PWD/tests/thread_sanitizer.supp
python3 - "build/$preset" "${JOBS:-$(nproc)}" "${parts[@]}" <<'PYTHON'
import json, os, re, subprocess, sys
import xml.etree.ElementTree as xml

build, jobs, *parts = sys.argv[1:]


def part_of(test):
    """By the folder of its program, or script; those of the transport's own parts by its name."""
    command = test.get("command", ["/"])[0]
    paths = [os.path.relpath(command, os.path.join(os.path.abspath(root), "tests")).split(os.sep) for root in (build, ".")]
    path = next((path for path in paths if path[0] != ".."), ["/"])
    own = re.match("control|wire", path[-1])
    return own.group() if path[0] == "transport" and own else path[0]


def reason(case):
    said = re.search(r"Skipped\n(.*)", case.findtext("system-out") or "")
    return said.group(1) if said else "it does not say why"


listed = json.loads(subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True).stdout)
skipped, failed = [], []
print(f"{'part':10} {'tests':>6} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}")
for part in parts:
    numbers = [i for i, test in enumerate(listed["tests"], 1) if part_of(test) == part]
    if not numbers:
        failed.append(f"{part}: no test was found")
        continue
    results = os.path.abspath(f"{build}/sanitize-{part}.xml")
    subprocess.run(["ctest", "--test-dir", build, "-I", "0,0,0," + ",".join(map(str, numbers)), "-j", jobs, "-Q", "--output-junit", results],
                   check=False)
    cases = xml.parse(results).getroot().findall("testcase")
    left_out = [case for case in cases if case.find("skipped") is not None]
    bad = [case for case in cases if case.get("status") == "fail"]
    skipped += [f"{case.get('name')}: {reason(case)}" for case in left_out]
    failed += [f"{part}: {case.get('name')}" for case in bad]
    seconds = sum(float(case.get("time")) for case in cases)
    print(f"{part:10} {len(cases):6} {len(cases) - len(bad) - len(left_out):7} {len(bad):7} {len(left_out):8} {seconds:8.0f}", flush=True)
for text in skipped:
    print("skipped", text)
for text in failed:
    print("FAILED", text)
sys.exit(1 if failed else 0)
PYTHON
