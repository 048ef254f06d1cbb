#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the fuzz targets with clang's libFuzzer under the address and undefined-behaviour sanitizers, and runs each for
# SECONDS. The seeds of corpus/ stay as they are; what is new goes to build-fuzz/corpus, an input that ends a target to
# build-fuzz/findings. The exit status is not 0 if there was one.
set -eu
cd "$(dirname "$0")/../.."
if [ $# -lt 1 ]; then
  echo "usage: tests/fuzz/run.sh SECONDS [NAME...]" >&2
  exit 2
fi
seconds=$1
shift
build=${KEDGE_FUZZ_BUILD:-build-fuzz}
cmake -S . -B "$build" -G Ninja -DCMAKE_C_COMPILER="${CC:-clang-14}" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DKEDGE_FUZZ=ON >/dev/null
[ $# -gt 0 ] || set -- $(ls tests/fuzz/fuzz_*.c | sed 's#.*/fuzz_##; s#\.c$##; /^file$/d')
targets=
for name in "$@"; do targets="$targets fuzz_$name"; done
# shellcheck disable=SC2086 # one word a target
cmake --build "$build" --target $targets >"$build/build.log" || { cat "$build/build.log"; exit 1; }
mkdir -p "$build/findings"
status=0
for name in "$@"; do
  mkdir -p "$build/corpus/$name"
  case $name in ranks | config) dictionary= ;; *) dictionary=-dict=tests/fuzz/json.dict ;; esac
  echo "== $name"
  "$build/fuzz_$name" "$build/corpus/$name" "tests/fuzz/corpus/$name" $dictionary -max_total_time="$seconds" -timeout=20 \
    -max_len=65536 -rss_limit_mb=2048 -malloc_limit_mb=1024 -artifact_prefix="$build/findings/$name-" -print_final_stats=1 \
    -verbosity=0 2>"$build/$name.log" || status=1
  grep -E 'ERROR|SUMMARY|does not hold|stat::number_of_executed_units|stat::peak_rss_mb' "$build/$name.log" || true
done
exit $status
