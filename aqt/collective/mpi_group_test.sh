#!/usr/bin/env bash
# Tests the MPI engine with one, two and four processes, and that a failure in one process ends the waiting ones.
#
# usage: mpi_group_test.sh MPI_RUN CHECK
set -euo pipefail
mpi_run=$1
check=$2

for processes in 1 2 4; do
  output=$("$mpi_run" "$processes" "$check")
  echo "$output"
  [ "$(grep -c 'is right$' <<<"$output")" = "$processes" ] || { echo "expected $processes results"; exit 1; }
done

if output=$(timeout 60 "$mpi_run" 2 "$check" fail 2>&1); then
  echo "a failure of a process must fail the run"; exit 1
fi
grep -q 'process 0 of 2: DATA_LOSS: a broken file' <<<"$output" || { echo "$output"; exit 1; }
