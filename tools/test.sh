#!/usr/bin/env bash
# Sets up, builds everything and runs all tests; ends with ctest's summary. Tests that cannot run here say why they are
# skipped: those that ask oracles, and those of the CUDA workers, which PIPESHARD_TEST_CUDA=1 builds and runs on stand-ins
# of NVIDIA's libraries: they need the CUDA Toolkit 13 (fetched where there is none) and no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/lib.sh

cmake_options=(-DPIPESHARD_CUDA=OFF)
if [ "${PIPESHARD_TEST_CUDA:-0}" = 1 ]; then
  tools/setup.sh --cuda-tests
  toolkit=$(cuda_toolkit)
  if [ -n "$toolkit" ]; then cmake_options=(-DPIPESHARD_CUDA=ON "-DCUDAToolkit_ROOT=$toolkit"); fi
else
  tools/setup.sh --tests
fi
build dev all
ctest --preset dev -j "$(nproc)" "$@"
