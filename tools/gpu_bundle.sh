#!/usr/bin/env bash
# Makes a bundle for a machine that has a GPU, CUDA 13 and glibc 2.36 or newer, and nothing else: the command, the module, the kernel
# tests, the libraries that they need (found by $ORIGIN), the example models, two of published sizes without weights, and gpu_check.sh.
#
#   tools/gpu_bundle.sh [--build FOLDER] [-o FILE.tar.xz|FOLDER]
#
# --build: take what is built there (with PIPESHARD_CUDA); else the preset `cuda` is built. The default is build/gpu-bundle.tar.xz, at
# most 40 MiB; a folder that is not there yet is made instead. Unpacked it is a folder gpu-bundle; gpu-bundle/tools/gpu_check.sh checks
# the GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/lib.sh

build_folder="" file=build/gpu-bundle.tar.xz
while [ $# -gt 0 ]; do
  case $1 in
    --build) build_folder=$2 && shift 2 ;;
    -o) file=$2 && shift 2 ;;
    *) die "unknown option '$1'; see the head of this file" ;;
  esac
done
if [ -z "$build_folder" ]; then
  toolkit=$(cuda_toolkit)
  [ -n "$toolkit" ] || die "there is no CUDA Toolkit 13; tools/setup.sh --cuda-tests fetches one"
  cmake_options=("-DCUDAToolkit_ROOT=$toolkit")
  build cuda pipeshard pipeshard_cuda cuda_kernels_test cuda_conformance_test
  build_folder=build/cuda
fi
most_bytes=$((40 << 20))
tests=(cuda_kernels_test cuda_conformance_test)

work=$(mktemp -d "${TMPDIR:-/tmp}/pipeshard-bundle.XXXXXX")
bundle=$work/gpu-bundle
mkdir -p "$bundle"/{bin,lib/pipeshard,tests,tools/gpu,examples}

# take FILE TO: without debug symbols.
take() {
  [ -e "$1" ] || die "$1 is not built"
  strip --strip-debug -o "$2" "$1"
}
take "$build_folder/tools/pipeshard" "$bundle/bin/pipeshard"
take "$build_folder/tools/pipeshard_cuda.so" "$bundle/lib/pipeshard/pipeshard_cuda.so"
for test in "${tests[@]}"; do take "$build_folder/tests/runtime/$test" "$bundle/tests/$test"; done

# All but glibc, which belongs to the machine, and NVIDIA's.
of_the_machine='^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util)\.so.*|lib(cudart|cublas|cublasLt|cudnn|nccl|cuda)[._].*)$'
ldd "$bundle"/bin/* "$bundle"/lib/pipeshard/* "$bundle"/tests/* | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | sort -u >"$work/libraries"
while read -r name path; do
  if [[ ! $name =~ $of_the_machine ]]; then take "$path" "$bundle/lib/$name"; fi
done <"$work/libraries"
# Needed libraries of those that are found by the command's RPATH, and not by their own.
for program in "$bundle"/bin/* "$bundle"/tests/*; do
  readelf -d "$program" | grep -qE '\(RPATH\).*\$ORIGIN/\.\./lib[]:]' || die "$program does not look for libraries beside itself (tools/CMakeLists.txt)"
done

# The cases that cuda_conformance_test runs; without them its row cannot.
suites=${PIPESHARD_ONNX_SUITES:-$(echo "$cache"/onnx-*/share/suites)}
if [ -d "$suites/node" ]; then
  mkdir "$bundle/tests/suites"
  cp -r "$suites/node" "$bundle/tests/suites/"
else
  say "ONNX's cases are left out: there is no $suites/node (tools/setup.sh makes it)"
fi

cp tools/gpu_check.sh "$bundle/tools/"
cp tools/gpu/*.sh "$bundle/tools/gpu/"
for model in mlp gpt2 llama resnet; do cp examples/$model.onnx examples/$model.onnx.data "$bundle/examples/"; done
for model in gpt2-124m resnet50; do xz -dc "tools/gpu/$model.onnx.xz" >"$bundle/examples/$model.onnx"; done
commit=$(git rev-parse --short=8 HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain 2>/dev/null)" ] || commit+="+changes"
printf 'commit %s\nbuilt %s\n' "$commit" "$(date -u +%F)" >"$bundle/MANIFEST"

mkdir -p "$(dirname "$file")"
if [[ $file != *.tar.xz ]]; then
  [ ! -e "$file" ] || die "$file is there already"
  mv "$bundle" "$file"
  say "$file: commit $commit"
  exit
fi
# xz -9 looks 64 MiB back: the programs follow each other, as they share much of their code.
(cd "$work" && tar --owner 0 --group 0 -cf - gpu-bundle/{lib,bin,tests,examples,tools,MANIFEST}) | xz -T2 -9 >"$file"
bytes=$(stat -c %s "$file")
[ "$bytes" -le $most_bytes ] || die "$file has $bytes bytes; expected at most $most_bytes"
say "$file: $bytes bytes, commit $commit"
