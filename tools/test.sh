#!/usr/bin/env bash
# Sets up, builds everything and runs all tests; ends with ctest's summary. Oracle tests that cannot run here say why
# they are skipped; those of CUDA are part of the preset cuda.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/lib.sh

tools/setup.sh --tests
build dev all
ctest --preset dev -j "$(nproc)" "$@"
