#!/usr/bin/env bash
# Sets up, builds everything and runs all tests; ends with ctest's summary. Oracle and CUDA tests that cannot run here say why
# they are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/lib.sh

tools/setup.sh --tests
build dev all
ctest --preset dev -j "$(nproc)" "$@"
