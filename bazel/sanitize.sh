#!/usr/bin/env bash
# Runs the tests under the sanitizers of g++: all of them by default.
#
# usage: bazel/sanitize.sh [asan|ubsan|tsan|asan+ubsan]... [-- BAZEL_OPTION...]      (default: asan+ubsan tsan)
#
# "asan+ubsan" is one build with both, which takes half the time of two. The last lines are "asan+ubsan: N passed, N failed" (test
# targets) for each build, after the names of the failed targets. The script fails if a target failed or if nothing ran. Objects and
# results have their own disk cache, because there is one build per sanitizer:
#
#   BAZELW_DISK_CACHE  (default: ~/.cache/aqt-bazel-san)
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

# Targets to which a sanitizer does not apply, each with the reason.
left_out="
//tests/consumer_test:consumer_test  builds in a Bazel of its own, which has no sanitizer
//tests/repo/arrows:arrows_test           Python over the source tree, runs no code of ours
//tests/repo/docs:docs_test               Python over the source tree, runs no code of ours
//tests/repo/format:format_test           Python over the source tree, runs no code of ours
//tests/repo/headers:headers_test         Python over the source tree, runs no code of ours
//tests/repo/scripts:scripts_test         Python around shell scripts, runs no code of ours
//aqt/collective:mpi_group_test      a program under MPI, whose library leaks and is not instrumented
//tests/e2e:data_parallel_mpi_test  a program under MPI, as above; data_parallel_test runs it on threads
//examples/minilm:fetch_test         Python around a download, runs no code of ours
"

sanitizers=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case "$1" in
    asan | ubsan | tsan | asan+ubsan) sanitizers+=("$1") ;;
    *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
  esac
  shift
done
[ $# -eq 0 ] || shift
[ ${#sanitizers[@]} -gt 0 ] || sanitizers=(asan+ubsan tsan)

export BAZELW_DISK_CACHE="${BAZELW_DISK_CACHE:-${HOME:-/tmp}/.cache/aqt-bazel-san}"
targets=(//...)
while read -r target reason; do
  [ -n "$target" ] || continue
  echo "left out: $target: $reason"
  targets+=("-$target")
done <<<"$left_out"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
summary=""
for sanitizer in "${sanitizers[@]}"; do
  SECONDS=0
  # Instrumented tests take up to 20 times as long.
  # shellcheck disable=SC2086
  ./bazelw test --config=${sanitizer//+/ --config=} --test_timeout=1800 --noshow_progress --keep_going "$@" -- "${targets[@]}" 2>&1 | tee "$log"
  code=${PIPESTATUS[0]}
  # One line per test target: "//a:b (cached) PASSED in 0.3s", "//a:c FAILED in 3 out of ...", "//a:d NO STATUS".
  passed=$(grep -cE '^//[^ ]+ .*PASSED' "$log")
  failing=$(grep -oE '^//[^ ]+ .*(FAILED|TIMEOUT|NO STATUS|FLAKY)' "$log" | sed "s/^/$sanitizer: /")
  failed=$(grep -c . <<<"$failing")
  if [ "$code" -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi  # the build itself broke
  if [ "$passed" -eq 0 ] && [ "$code" -eq 0 ]; then code=4; fi    # nothing ran: never a success
  [ "$code" -eq 0 ] || status=$code
  summary+="${failing:+$failing$'\n'}$sanitizer: $passed passed, $failed failed in $SECONDS s"$'\n'
done
printf '%s' "$summary"
exit "$status"
