#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every kernel of a module for graphics cards, for every target: from the objects themselves where a tool reads them, else
# from what the assembler said while it made them. All targets have the same kernels; those that spill registers are named.
# Usage: tests/test_gpu_kernels.sh BUILD MODULE TARGET...
set -eu
build=$1
module=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# A line a kernel: its name. From ptxas: "Compiling entry function 'NAME' for 'TARGET'".
cuda_kernels() {
  if command -v cuobjdump >/dev/null 2>&1; then
    for object in "$build"/cuda/*.o; do cuobjdump -symbols -arch "$1" "$object"; done |
      sed -n 's/.*STT_FUNC.*STO_ENTRY *//p'
  else
    cat "$build"/cuda/*.txt | sed -n "s/.*Compiling entry function '\\([^']*\\)' for '$1'.*/\\1/p"
  fi
}
cuda_spills() {
  cat "$build"/cuda/*.txt | awk -v target="'$1'" '
    /Compiling entry function/ { name = $0; sub(/.*function ./, "", name); sub(/. for.*/, "", name); own = $NF == target }
    own && /spill stores/ && $5 + $9 > 0 { print name ": " $5 + $9 " bytes" }'
}

# The device code of an object is a bundle in its section .hip_fatbin, an ELF file a target.
tool() {
  for at in "$1" /usr/lib/llvm-15/bin/"$1" /opt/rocm/llvm/bin/"$1"; do
    if command -v "$at" >/dev/null 2>&1; then
      echo "$at"
      return
    fi
  done
}
hip_kernels() {
  bundler=$(tool clang-offload-bundler)
  reader=$(tool llvm-readelf)
  if [ -z "$bundler" ] || [ -z "$reader" ]; then
    cat "$build"/hip/*.txt | sed -n 's/.*Function Name: \([^ ]*\).*/\1/p'
    return
  fi
  for object in "$build"/hip/*.o; do
    objcopy -O binary --only-section=.hip_fatbin "$object" "$folder/bundle"
    [ -s "$folder/bundle" ] || continue
    "$bundler" -unbundle -type=o "-targets=hipv4-amdgcn-amd-amdhsa--$1" -inputs="$folder/bundle" \
      -outputs="$folder/code" 2>/dev/null
    "$reader" --symbols --wide "$folder/code" | awk '$4 == "FUNC" { print $8 }'
  done
}
hip_spills() {
  cat "$build"/hip/*.txt | awk '
    /Function Name:/ { name = $0; sub(/.*Function Name: /, "", name); sub(/ .*/, "", name) }
    /VGPRs Spill: [1-9]/ { n = $0; sub(/.*Spill: /, "", n); sub(/ .*/, "", n); print name ": " n " vector registers" }' | sort -u
}

bad=0
for target in "$@"; do
  "${module}_kernels" "$target" | sort -u >"$folder/$target"
  count=$(wc -l <"$folder/$target")
  echo "$module $target: $count kernels"
  c++filt <"$folder/$target" | sed 's/^/  /; s/(.*//' | cut -c 1-160 | sort -u
  [ "$count" -ge 60 ] || { echo "$target: expected at least 60 kernels" && bad=1; }
  cmp -s "$folder/$1" "$folder/$target" || { echo "$target has other kernels than $1" && bad=1; }
  "${module}_spills" "$target" | c++filt | sed "s/^/spills on $target: /"
done
ls -l "$build/libkedge-$module.so" | awk '{ print "size: " $5 " bytes" }'
exit $bad
