#!/bin/sh
# Builds //... of tests/consumer in fastbuild, runs its tests and its program, and compares the program's output.
set -eu

root=$(dirname "$(realpath "$TEST_SRCDIR/$TEST_WORKSPACE/WORKSPACE")")
cd "$root/tests/consumer"
bazel=$(command -v bazel || command -v bazelisk) || { echo "no bazel and no bazelisk on PATH: $PATH"; exit 1; }

# The inner Bazel keeps its outputs beside the outer one's, so the next run is fast and `bazel clean --expunge` of this
# workspace removes them. Outside Bazel's usual layout they are in the test's own folder.
case "$TEST_TMPDIR" in
  */execroot/*) output_base=${TEST_TMPDIR%%/execroot/*}/consumer ;;
  *) output_base=$TEST_TMPDIR/consumer ;;
esac
home=$TEST_TMPDIR
unset TEST_TMPDIR  # Bazel would take it for its output root

run() {
  HOME="$home" "$bazel" --host_jvm_args=-Xmx512m --max_idle_secs=60 --output_base="$output_base" "$@"
}
trap 'run shutdown' EXIT
set -- --experimental_convenience_symlinks=ignore --noshow_progress --nosandbox_debug
[ -z "${AQT_DISK_CACHE:-}" ] || set -- "$@" "--disk_cache=$AQT_DISK_CACHE"

run test "$@" --test_output=errors //...
printed=$(run run "$@" //:app 2>"$home/app.log") || { cat "$home/app.log"; exit 1; }
expected=$(cat expected_output.txt)
if [ "$printed" != "$expected" ]; then
  printf 'the program printed\n%s\ninstead of\n%s\n' "$printed" "$expected"
  exit 1
fi
echo "passed: $printed"
