#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The main job, small: installs, builds, and runs the quick study of `kedge lab`.
set -eu

usage() {
  cat <<'TEXT'
usage: tools/demo.sh [--out DIR] [--preset NAME] [--no-setup] [--help]
Installs what is missing, builds, then runs a small study from nothing to a report.
  --out DIR      where the study goes (out/lab-<preset>); one that was begun there goes on
  --preset NAME  quick (minutes, the default), standard (about an hour) or full (a day or more)
  --no-setup     install nothing
TEXT
}

cd "$(dirname "$0")/.."
out=
preset=quick
setup=yes
while [ $# -gt 0 ]; do
  case $1 in
    --out | --preset)
      if [ $# -lt 2 ]; then
        echo "demo.sh: $1 wants a value" >&2
        exit 2
      fi
      if [ "$1" = --out ]; then out=$2; else preset=$2; fi
      shift
      ;;
    --no-setup) setup=no ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "demo.sh: unknown argument '$1'" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift
done
out=${out:-out/lab-$preset}

cat <<'TEXT'
What this will show. Small mixture-of-experts models learn five domains: word problems, programs, facts, logic, rows of
letters. Then each is post-trained on a harder form of one of them: plainly (SFT), with a load-balancing loss (LBL),
with Router Prior Bias (RPB), or held to the base router token by token (KL per token). At the end: how much each
learnt, how much of the other domains it forgot, how much of the routing it kept, with intervals over bases and seeds.
TEXT
[ "$setup" = no ] || tools/setup.sh
clock=$(date +%s)
mkdir -p out
log=out/build.txt
echo "Building (build/, release)"
if ! { cmake --preset release && cmake --build build --target kedge -j "$(nproc)"; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "demo.sh: the build failed" >&2
  exit 1
fi
echo "Built in $(($(date +%s) - clock)) s"
build/kedge lab --preset "$preset" --out "$out"
echo "All of it took $(($(date +%s) - clock)) s."
