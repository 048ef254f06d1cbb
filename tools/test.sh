#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, and runs the tests. Ends with ctest's closing lines and the number of skipped tests;
# the exit status is not 0 if anything failed.
set -eu

usage() {
  cat <<'TEXT'
usage: tools/test.sh [--quick | --long] [--preset NAME] [--no-setup] [-R PATTERN] [--help]
  (nothing)       the suites labelled quick and ci
  --quick         the suites labelled quick alone
  --long          all suites, long ones too
  --preset NAME   release (default), debug, asan or tsan
  --no-setup      install nothing
  -R PATTERN      the suites whose names match
TEXT
}

cd "$(dirname "$0")/.."
labels='quick|ci'
preset=release
setup=yes
pattern=.
while [ $# -gt 0 ]; do
  case $1 in
    --quick) labels=quick ;;
    --long) labels=. ;;
    --no-setup) setup=no ;;
    --preset | -R)
      if [ $# -lt 2 ]; then
        echo "test.sh: $1 wants a value" >&2
        exit 2
      fi
      if [ "$1" = -R ]; then pattern=$2; else preset=$2; fi
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "test.sh: unknown argument '$1'" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift
done

case $preset in
  release) build=build ;;
  *) build=build-$preset ;;
esac
if [ "$setup" = yes ]; then
  case $preset in
    tsan) tools/setup.sh --clang ;;
    *) tools/setup.sh --format ;;
  esac
fi

jobs=$(nproc)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() {
  if ! "$@" >"$log" 2>&1; then
    cat "$log"
    echo "test.sh: failed: $*" >&2
    exit 1
  fi
}
start=$(date +%s)
quietly cmake --preset "$preset" -DKEDGE_TESTS=ON
quietly cmake --build "$build" -j "$jobs"
echo "built $build in $(($(date +%s) - start)) s"

status=0
ctest --test-dir "$build" -L "$labels" -R "$pattern" -j "$jobs" --output-on-failure --no-tests=error || status=$?

# Skipped tests: cmocka's lines inside suites, and suites that skipped as a whole. Reasons are the lines before them.
printed="$build/Testing/Temporary/LastTest.log"
if [ -f "$printed" ]; then
  awk '
    /^[0-9]+\/[0-9]+ Testing: / { suite = $3; reason = "" }
    /^\[==========\].* run\.$/ { suite = "" } # what follows is the list again
    /^skipped: / { count++; why[suite ": " substr($0, 10)]++; next }
    /skipped( \([0-9]+\))?: / { reason = $0; sub(/^.*skipped( \([0-9]+\))?: /, "", reason) }
    /^\[  SKIPPED \] [A-Za-z_]/ && suite { count++; why[suite ": " (reason ? reason : $4)]++ }
    END {
      if (!count) { print "skipped: 0"; exit }
      list = ""
      for (w in why) list = list (list ? "; " : "") w
      printf "skipped: %d (%s)\n", count, list
    }' "$printed"
fi
exit $status
