#!/usr/bin/env bash
# Sets up, builds everything and runs all tests; ends with ctest's summary. Tests that cannot run here say why they are
# skipped: those that ask oracles, and those of the CUDA workers, which need the CUDA Toolkit and no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/lib.sh

tools/setup.sh --tests
toolkit=$(cuda_toolkit)
cmake_options=(-DPIPESHARD_CUDA=OFF)
if [ -n "$toolkit" ]; then cmake_options=(-DPIPESHARD_CUDA=ON "-DCUDAToolkit_ROOT=$toolkit"); fi
build dev all
ctest --preset dev -j "$(nproc)" "$@"
