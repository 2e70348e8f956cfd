#!/usr/bin/env bash
# Installs what pipeshard needs to build: Debian packages, and ONNX (C++), built once into a cache folder.
# Safe to run again: what is there is left alone (a second run takes about a second).
#
#   tools/setup.sh             packages and ONNX
#   tools/setup.sh --tests     also a Python environment with onnx and onnxruntime: test oracles, optional
#   tools/setup.sh --cuda-tests      that, and where no CUDA Toolkit 13 is found the pieces of one that the CUDA workers
#                              are built with: 722 MB to fetch, 1060 MB on disk, optional
#   tools/setup.sh --cluster-tests   also Slurm and Open MPI, which tests in tests/cluster start in namespaces; optional
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/lib.sh

packages=(g++ cmake ninja-build ccache git pkg-config python3 python3-pip python3-venv
  libprotobuf-dev protobuf-compiler libdnnl-dev libzmq3-dev cppzmq-dev libgloo-dev libcli11-dev nlohmann-json3-dev
  libfmt-dev libicu-dev libcpp-httplib-dev libssl-dev libzip-dev libxxhash-dev libre2-dev libeigen3-dev libjemalloc-dev libgtest-dev libgmock-dev libbenchmark-dev zlib1g-dev)

# What to do where the packages are not to be had.
elsewhere='Debian 12 and 13 and Ubuntu 24.04 have been tried; on another system, in a container:
  docker run -it -v "$PWD":/pipeshard -w /pipeshard ubuntu:24.04 tools/quickstart.sh'

install_packages() {
  local missing=() absent=() package
  command -v dpkg-query >/dev/null || die "this is no Debian and no Ubuntu, whose packages pipeshard is built with. $elsewhere"
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing Debian packages: ${missing[*]}"
  local run=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "these packages are missing and there is no sudo: ${missing[*]}; install them and run this again"
    run=(sudo)
  fi
  "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q >"$log" 2>&1 || show_log_and_die "apt-get update failed"
  for package in "${missing[@]}"; do
    apt-cache show "$package" >/dev/null 2>&1 || absent+=("$package")
  done
  [ ${#absent[@]} -eq 0 ] || die "$(. /etc/os-release && echo "$PRETTY_NAME") has no package ${absent[*]}. $elsewhere"
  "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >"$log" 2>&1 ||
    show_log_and_die "installing packages failed"
}

# The archive comes from the Python package index; pip checks its SHA-256.
onnx_version=1.19.1
onnx_sha256=737524d6eb3907d3499ea459c6f01c5a96278bb3a0f2ff8ae04786fb5d7f1ed5

# Leaves the source in $work.
fetch_onnx() {
  work=$(mktemp -d "$cache/build.XXXXXX")
  say "fetching ONNX $onnx_version"
  echo "onnx==$onnx_version --hash=sha256:$onnx_sha256" >"$work/requirements.txt"
  python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary onnx --require-hashes -r "$work/requirements.txt" -d "$work" \
    >"$log" 2>&1 || show_log_and_die "fetching ONNX failed"
  tar -xf "$work/onnx-$onnx_version.tar.gz" -C "$work"
}

# The library, and the backend test suites as data.
build_onnx() {
  local prefix="$cache/onnx-$onnx_version"
  [ -e "$prefix/complete" ] && [ -e "$prefix/share/suites" ] && return
  fetch_onnx
  if [ ! -e "$prefix/complete" ]; then build_onnx_library; fi
  mkdir -p "$prefix/share"
  rm -rf "$prefix/share/suites.new"
  cp -r "$work/onnx-$onnx_version/onnx/backend/test/data" "$prefix/share/suites.new"
  mv "$prefix/share/suites.new" "$prefix/share/suites"
  rm -rf "$work"
}

build_onnx_library() {
  say "building ONNX $onnx_version (once, about two minutes)"
  # -O1 halves the time: what we call of it is the schemas' inference, which takes a moment per model.
  cmake -G Ninja -S "$work/onnx-$onnx_version" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DONNX_BUILD_PYTHON=OFF -DONNX_BUILD_TESTS=OFF \
    -DONNX_ML=ON -DONNX_USE_PROTOBUF_SHARED_LIBS=ON -DCMAKE_POSITION_INDEPENDENT_CODE=ON "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG" \
    -DCMAKE_INSTALL_PREFIX="$prefix" >"$log" 2>&1 ||
    show_log_and_die "configuring ONNX failed"
  cmake --build "$work/build" >"$log" 2>&1 || show_log_and_die "building ONNX failed"
  cmake --install "$work/build" >"$log" 2>&1 || show_log_and_die "installing ONNX failed"
  touch "$prefix/complete"
}

# Oracles for tests. Failing to get them is no error: the tests that want them say that they were skipped.
build_test_environment() {
  local environment="$cache/test-environment"
  if [ -e "$environment/complete" ] && cmp -s tests/requirements.txt "$environment/complete"; then return; fi
  say "installing test oracles (onnx, onnxruntime)"
  rm -rf "$environment"
  if python3 -m venv "$environment" >"$log" 2>&1 &&
    "$environment/bin/python" -m pip install -q --disable-pip-version-check -r tests/requirements.txt >"$log" 2>&1; then
    cp tests/requirements.txt "$environment/complete"
  else
    cp "$log" "$cache/test-environment.log"
    say "could not install them; the oracle tests will be skipped (log: $cache/test-environment.log)"
  fi
}

# What CUDA workers are compiled and linked with; they run on tests/standin. Failing to get it is no error: test.sh says
# that they are left out.
fetch_cuda_toolkit() {
  local found
  found=$(cuda_toolkit)
  if [ -n "$found" ] && [ "$found" != "$cuda_cache/nvidia/cu13" ]; then return; fi
  if cmp -s tests/cuda_requirements.txt "$cuda_cache/complete"; then return; fi
  say "fetching the CUDA Toolkit's compiler and libraries (722 MB)"
  rm -rf "$cuda_cache"
  if python3 -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r tests/cuda_requirements.txt \
    --target "$cuda_cache" >"$log" 2>&1; then
    # As an installed toolkit has them.
    ln -s lib "$cuda_cache/nvidia/cu13/lib64"
    local library
    for library in cudart cublasLt; do ln -s "lib$library.so.13" "$cuda_cache/nvidia/cu13/lib/lib$library.so"; done
    ln -s ../../nccl/include/nccl.h "$cuda_cache/nvidia/cu13/include/nccl.h"
    for library in libnccl.so libnccl.so.2; do ln -s ../../nccl/lib/libnccl.so.2 "$cuda_cache/nvidia/cu13/lib/$library"; done
    cp tests/cuda_requirements.txt "$cuda_cache/complete"
  else
    cp "$log" "$cache/cuda-toolkit.log"
    rm -rf "$cuda_cache"
    say "could not fetch it; the CUDA workers will be neither built nor tested (log: $cache/cuda-toolkit.log)"
  fi
}

[ "${1:-}" = --cluster-tests ] && packages+=(slurm-wlm munge openmpi-bin iproute2 procps)
install_packages
build_onnx
case "${1:-}" in
  --tests) build_test_environment ;;
  --cuda-tests)
    build_test_environment
    fetch_cuda_toolkit
    ;;
  --cluster-tests | "") ;;
  *) die "unknown option '$1'; see the head of this file" ;;
esac
