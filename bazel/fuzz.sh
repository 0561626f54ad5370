#!/usr/bin/env bash
# Fuzzes the targets of //tests/fuzz with libFuzzer, and with the address and undefined-behaviour sanitizers
# (clang 16: apt-get install clang-16 libclang-rt-16-dev).
#
# usage: bazel/fuzz.sh SECONDS [TARGET]...      (default: every target)
#
# The last lines are "NAME: N executions in S s, coverage E edges, no finding" for each target. If an input fails, it is kept in
# FUZZ_DIR/NAME, the line names it, and the exit status is 1. FUZZ_DIR/NAME/corpus grows from run to run; to keep an input
# permanently, copy it into tests/fuzz/NAME_corpus.
#
#   FUZZ_DIR           (default: ~/.cache/aqt-fuzz)
#   FUZZ_JOBS          number of targets that run at a time (default: 1)
#   BAZELW_DISK_CACHE  (default: ~/.cache/aqt-bazel-san)
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

if ! [[ "${1:-}" =~ ^[1-9][0-9]*$ ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
  exit 2
fi
seconds=$1
shift
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  mapfile -t targets < <(sed -n 's/^ *name = "\(.*_fuzz\)",$/\1/p' tests/fuzz/BUILD.bazel)
fi

export BAZELW_DISK_CACHE="${BAZELW_DISK_CACHE:-${HOME:-/tmp}/.cache/aqt-bazel-san}"
fuzz_dir="${FUZZ_DIR:-${HOME:-/tmp}/.cache/aqt-fuzz}"
./bazelw build --config=fuzz --noshow_progress "${targets[@]/#///tests/fuzz:}" || exit

# Fuzzes one target and writes its line of the summary.
fuzz() {
  local name=$1 dir=$fuzz_dir/$1 binary=$PWD/bazel-bin/tests/fuzz/$1 log=$fuzz_dir/$1/log
  rm -rf "$dir/seeds"
  mkdir -p "$dir/corpus" "$dir/seeds"
  # The target's data, as files in one folder. Words from them and from the configurations are the dictionary.
  while IFS= read -r seed; do
    cp -L "$seed" "$dir/seeds/$(basename "$(dirname "$seed")")_$(basename "$seed")"
  done < <(find -L "$binary.runfiles" -mindepth 2 -type f ! -name "$name")
  cat "$dir"/seeds/* configs/*.proto | grep -aoE '[A-Za-z_][A-Za-z_0-9]{2,}' | sort -u | sed 's/.*/"&"/' >"$dir/words"

  ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=1:strict_init_order=1}" UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}" \
    "$binary" -max_total_time="$seconds" -max_len=4096 -timeout=60 -dict="$dir/words" -artifact_prefix="$dir/" \
    -print_final_stats=1 "$dir/corpus" "$dir/seeds" >"$log" 2>&1
  local code=$?
  local executions edges took input
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -1)
  edges=$(grep -aoE 'cov: [0-9]+' "$log" | tail -1 | cut -d' ' -f2)
  took=$(grep -aoE '^Done [0-9]+ runs in [0-9]+' "$log" | awk '{print $5}')
  if [ "$code" -eq 0 ] && [ -n "$executions" ]; then
    echo "$name: $executions executions in $took s, coverage ${edges:-0} edges, no finding" >"$dir/summary"
  else
    input=$(grep -aoE 'Test unit written to .*' "$log" | tail -1 | sed 's/Test unit written to //')
    tail -40 "$log"
    echo "$name: after ${executions:-0} executions a FINDING: ${input:-see $log}" >"$dir/summary"
  fi
}

for name in "${targets[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "${FUZZ_JOBS:-1}" ]; do wait -n; done
  mkdir -p "$fuzz_dir/$name"
  rm -f "$fuzz_dir/$name/summary"
  fuzz "$name" &
done
wait
status=0
for name in "${targets[@]}"; do
  cat "$fuzz_dir/$name/summary" || echo "$name: did not run"
  grep -q ', no finding$' "$fuzz_dir/$name/summary" || status=1
done
exit "$status"
