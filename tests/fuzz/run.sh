#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the fuzz targets with clang's libFuzzer under the address and undefined-behaviour sanitizers, and runs each for
# SECONDS, KEDGE_FUZZ_JOBS at a time (0: all at once; as many as there are cores if it is not set). The seeds of corpus/
# stay as they are; what is new goes to build-fuzz/corpus, an input that ends a target to build-fuzz/findings. The exit
# status is not 0 if there was one.
set -eu

# One target, built already: --one BUILD SECONDS NAME.
run_one() {
  build=$1 seconds=$2 name=$3
  mkdir -p "$build/corpus/$name"
  case $name in ranks | config | program) dictionary= ;; *) dictionary=-dict=tests/fuzz/json.dict ;; esac
  status=0
  "$build/fuzz_$name" "$build/corpus/$name" "tests/fuzz/corpus/$name" $dictionary -max_total_time="$seconds" -timeout=20 \
    -max_len=65536 -rss_limit_mb=2048 -malloc_limit_mb=1024 -artifact_prefix="$build/findings/$name-" -print_final_stats=1 \
    -verbosity=0 2>"$build/$name.log" || status=$?
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log")
  memory=$(sed -n 's/^stat::peak_rss_mb: *//p' "$build/$name.log")
  if [ "$status" = 0 ] && [ "${runs:-0}" -gt 0 ]; then
    echo "fuzz $name: $runs inputs in $seconds s, $memory MB, no finding"
    return 0
  fi
  echo "fuzz $name: ended with status $status after ${runs:-0} inputs; log: $build/$name.log"
  grep -E 'ERROR|SUMMARY|does not hold|Test unit written' "$build/$name.log" || tail -n 5 "$build/$name.log"
  return 1
}

cd "$(dirname "$0")/../.."
if [ $# -lt 1 ]; then
  echo "usage: tests/fuzz/run.sh SECONDS [NAME...]" >&2
  exit 2
fi
if [ "$1" = --one ]; then
  run_one "$2" "$3" "$4"
  exit
fi
seconds=$1
shift
build=${KEDGE_FUZZ_BUILD:-build-fuzz}
cores=$(nproc)
jobs=${KEDGE_FUZZ_JOBS:-$cores}
cmake -S . -B "$build" -G Ninja -DCMAKE_C_COMPILER="${CC:-clang-14}" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DKEDGE_FUZZ=ON >/dev/null
[ $# -gt 0 ] || set -- $(ls tests/fuzz/fuzz_*.c | sed 's#.*/fuzz_##; s#\.c$##; /^file$/d')
targets=
for name in "$@"; do targets="$targets fuzz_$name"; done
# shellcheck disable=SC2086 # one word a target
cmake --build "$build" --target $targets -j "$cores" >"$build/build.log" || { cat "$build/build.log"; exit 1; }
mkdir -p "$build/findings"
printf '%s\n' "$@" | xargs -P "$jobs" -n 1 tests/fuzz/run.sh --one "$build" "$seconds"
