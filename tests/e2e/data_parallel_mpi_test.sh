#!/usr/bin/env bash
# Training under MPI, with two and four processes.
#
# usage: data_parallel_mpi_test.sh MPI_RUN CHECK
set -euo pipefail
for processes in 2 4; do
  folder=$(mktemp -d "${TEST_TMPDIR:-/tmp}/states.XXXXXX")
  output=$("$1" "$processes" "$2" "$folder")
  echo "$output"
  [ "$(grep -c 'is right$' <<<"$output")" = "$processes" ] || { echo "expected $processes results"; exit 1; }
done
