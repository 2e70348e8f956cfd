#!/usr/bin/env bash
# The bundle for machines with a GPU (tools/gpu_bundle.sh) is complete, and its check works: it runs on the stand-in, in an environment
# that is empty. What it says of a machine where something is missing is checked too.
#
#   tests/standin/bundle_test.sh BUILD [ROWS]      ROWS: as gpu_check.sh has them
set -euo pipefail
build=$(realpath "$1")
rows=${2:-machine|starts|kernels.*|record|validate-mlp-.|validate-optimizers|structure-.*|fault-.*|sanitize-memcheck}
cd "$(dirname "$0")/../.."
folder=$(mktemp -d "${TMPDIR:-/tmp}/pipeshard-bundle-test.XXXXXX")
trap 'rm -rf "$folder"' EXIT

die() {
  echo "FAILED: $*" >&2
  exit 1
}

bundle=$folder/gpu-bundle
tools/gpu_bundle.sh --build "$build" -o "$bundle"

# `xz -9` makes the archive, in minutes; `gzip -1` about twice as large, in seconds.
packed=$(tar -C "$folder" -cf - gpu-bundle | gzip -1 | wc -c)
[ "$packed" -le $((80 << 20)) ] || die "the archive would be larger than its 40 MiB: gzip -1 makes $packed bytes"

# All libraries but glibc's and NVIDIA's are found in the bundle.
foreign=$(env -i ldd "$bundle"/bin/* "$bundle"/tests/* "$bundle/lib/pipeshard/pipeshard_cuda.so" | awk '$2 == "=>" {print $1, $3}' | sort -u |
  grep -vF "$bundle" | grep -vE '^(lib(c|m|dl|rt|pthread|resolv|util|cudart|cublasLt)\.so|ld-linux)' || true)
[ -z "$foreign" ] || die "not in the bundle: $foreign"

# check CODE ARGUMENT...
check() {
  local want=$1 code=0
  shift
  env -i PATH="$PATH" STANDIN_DEVICES="${devices:-1}" ${filter:+"GTEST_FILTER=$filter"} "$bundle/tools/gpu_check.sh" \
    --standin "${standin:-$build/tests/standin}" "$@" >"$folder/table" || code=$?
  cat "$folder/table"
  [ $code -eq "$want" ] || die "code $code, not $want: $*"
}

has() { grep -qE -- "$2" "$folder/$1" || die "$1 does not say '$2'"; }

# The sanitizers cannot run here: the code says so, and what else there is has passed.
check 77 --rows "$rows" --results "$folder/results.md" --record "$folder/calls.safetensors"
has table '^record +passed .* recorded [0-9]{2,} calls, [0-9]+ bytes'
[ "$(stat -c %s "$folder/calls.safetensors")" -le $((1 << 20)) ] || die "more is recorded than is kept"
has table '^sanitize-memcheck +not run .* the stand-in looks itself'
has table ', 0 failed, 3 could not run'
for model in gpt2-124m resnet50; do has table "^structure-$model +not run .*it can be planned"; done
has results.md '^\| fault-index \| passed \| code 78, the CPU.s message \|'
lines=$(wc -l <"$folder/results.md")

# Results are merged by row and device, into a file that others have written.
sed -i 's/^| starts .*/| starts | passed | x | 1 | 0123abcd | 2020-01-01 | stand-in | none |\n| starts | passed | x | 1 | 0123abcd | 2020-01-01 | NVIDIA H100 | 580 |/' "$folder/results.md"
echo "Behind the table." >>"$folder/results.md"
check 0 --rows starts --results "$folder/results.md"
[ "$(wc -l <"$folder/results.md")" -eq $((lines + 2)) ] || die "rows were not replaced: $(cat "$folder/results.md")"
[ "$(grep -c 0123abcd "$folder/results.md")" -eq 1 ] || die "the row of another device is gone, or its own is left"

# Groups of rows side by side; everything in one folder.
check 77 --at-once --rows 'starts|fault-index|validate-mlp-1|sanitize-memcheck' --keep "$folder/kept" --results "$folder/kept/gpu-results.md"
has table ', 0 failed, 1 could not run'
[ "$(grep -c '^row ' "$folder/table")" -eq 1 ] || die "a table for each group"
[ "$(ls "$folder/kept")" = $'gpu-results.md\nrows.log' ] || die "more files are kept than a machine may give back: $(ls "$folder/kept")"
for row in starts fault-index validate-mlp-1; do
  has kept/rows.log "^== $row: passed"
  has kept/gpu-results.md "^\\| $row \\| passed .* stand-in "
done
has kept/gpu-results.md '^\| sanitize-memcheck \| not run '

# Without cuDNN its tests are left out, which is no pass.
if [ -e "$build/tests/standin/libcudnn.so.9" ]; then
  mkdir "$folder/no-cudnn"
  ln -s "$build"/tests/standin/*.so* "$folder/no-cudnn"
  rm "$folder/no-cudnn"/libcudnn.so*
  touch "$folder/no-cudnn/libcudnn.so.9"
  standin=$folder/no-cudnn filter='Cudnn.*:CudaKernels.Windows' check 77 --rows kernels
  has table '^kernels +not run .*no cuDNN \(.*libcudnn.so.9.*what needs none: 1 test'
fi

# What is wrong is no pass.
devices=0 check 1 --rows 'validate-mlp-1'
has table '^validate-mlp-1 +FAILED .*code 78'
check 77 --rows 'starts' --seconds 4
has table '^starts +not run .*the time of the whole check was over'
check 1 --rows 'validate-gpt2-4' --seconds 5
has table '^validate-gpt2-4 +FAILED .*it took longer than 5 s'
mv "$bundle/lib/pipeshard/pipeshard_cuda.so" "$folder"
check 1 --rows 'fault-index'
has table '^fault-index +FAILED +[0-9]+ +another message than the CPU.s'
