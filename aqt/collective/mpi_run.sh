#!/usr/bin/env bash
# Starts a test program under MPI on one machine with any number of cores, also as root and in a container.
#
# usage: mpi_run.sh PROCESSES PROGRAM ARGUMENT...
set -euo pipefail
processes=$1
shift
# OpenMPI's sockets need a short path; a test's own folder is too long.
TMPDIR=$(mktemp -d /tmp/mpi.XXXXXX)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
mpirun --allow-run-as-root --oversubscribe --bind-to none --mca btl self,vader --mca btl_vader_single_copy_mechanism none \
  --mca plm isolated -np "$processes" "$@"
