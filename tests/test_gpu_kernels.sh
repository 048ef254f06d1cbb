#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every kernel of a module for graphics cards, for every target (tools/gpu-kernels.sh). All targets have the same kernels; those
# that spill registers are named.
# Usage: tests/test_gpu_kernels.sh BUILD MODULE TARGET...
set -eu
build=$1
module=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

tools=$(dirname "$0")/../tools
bad=0
for target in "$@"; do
  "$tools/gpu-kernels.sh" "$build" "$module" "$target" >"$folder/all"
  awk '{ print $2 }' "$folder/all" | sort -u >"$folder/$target"
  count=$(wc -l <"$folder/$target")
  echo "$module $target: $count kernels, $(awk '$3 > most { most = $3 } END { print most + 0 }' "$folder/all") registers at most"
  c++filt <"$folder/$target" | sed 's/^/  /; s/(.*//' | cut -c 1-160 | sort -u
  [ "$count" -ge 60 ] || { echo "$target: expected at least 60 kernels" && bad=1; }
  cmp -s "$folder/$1" "$folder/$target" || { echo "$target has other kernels than $1" && bad=1; }
  awk '$4 > 0 { print $2 ": " $4 " bytes" }' "$folder/all" | c++filt | sed "s/^/spills on $target: /"
done
ls -l "$build/libkedge-$module.so" | awk '{ print "size: " $5 " bytes" }'
exit $bad
