#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The kernels of a build's modules for graphics cards: for each target what the vendor's compiler says of registers, memory that
# registers spill to and shared memory. For cuda that is what ptxas printed (BUILD/cuda/*.txt), for hip the notes of the code itself.
set -eu

usage() {
  cat <<'TEXT'
usage: tools/gpu-kernels.sh BUILD [--spills]
       tools/gpu-kernels.sh BUILD cuda|hip TARGET
  the first prints a table of all kernels of both modules, or of those that spill; the second lines of
  TARGET NAME REGISTERS SPILLED SHARED, mangled names, bytes of a thread and of a block
TEXT
}

tool() {
  for at in "$1" /usr/lib/llvm-15/bin/"$1" /opt/rocm/llvm/bin/"$1"; do
    if command -v "$at" >/dev/null 2>&1; then
      echo "$at"
      return
    fi
  done
  echo "gpu-kernels.sh: no $1 here" >&2
  exit 1
}

cuda() {
  cat "$build"/cuda/*.txt | awk -v target="$1" '
    /Compiling entry function/ { name = $0; sub(/.*function ./, "", name); sub(/. for.*/, "", name); own = $NF == "\047" target "\047" }
    /spill stores/ { spilled = $5 + $9 }
    own && /Used [0-9]+ registers/ {
      shared = 0
      for (i = 2; i < NF; i++) if ($(i + 2) ~ /^smem/ && $(i + 1) == "bytes") shared = $i
      for (i = 2; i < NF; i++) if ($i == "Used") registers = $(i + 1)
      print target, name, registers, spilled, shared
      own = 0
    }'
}

# The device code of an object is a bundle in its section .hip_fatbin, an ELF file a target.
hip() {
  bundler=$(tool clang-offload-bundler)
  reader=$(tool llvm-readelf)
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  for object in "$build"/hip/*.o; do
    objcopy -O binary --only-section=.hip_fatbin "$object" "$folder/bundle"
    [ -s "$folder/bundle" ] || continue
    "$bundler" -unbundle -type=o "-targets=hipv4-amdgcn-amd-amdhsa--$1" -inputs="$folder/bundle" \
      -outputs="$folder/code" 2>/dev/null
    "$reader" --notes "$folder/code"
  done | awk -v target="$1" '
    /^    \.group_segment_fixed_size:/ { shared = $2 }
    /^    \.name:/ { name = $2 }
    /^    \.private_segment_fixed_size:/ { spilled = $2 }
    /^    \.vgpr_count:/ { registers = $2 }
    /^    \.wavefront_size:/ { print target, name, registers, spilled, shared }'
}

# The targets of a module's code here.
targets() {
  case $1 in
    cuda) cat "$build"/cuda/*.txt 2>/dev/null | sed -n "s/.*Compiling entry function.* for '\\(sm_[0-9a-z]*\\)'.*/\\1/p" | sort -u ;;
    hip)
      reader=$(tool clang-offload-bundler)
      objcopy -O binary --only-section=.hip_fatbin "$build/hip/elementwise.o" "$2"
      "$reader" -list -type=o "-inputs=$2" 2>/dev/null | sed -n 's/.*amdhsa--*\(gfx[0-9a-z]*\)$/\1/p' | sort -u
      ;;
  esac
}

[ $# -ge 1 ] || { usage >&2 && exit 2; }
build=$1
case ${2:-} in
  -h | --help)
    usage
    exit 0
    ;;
  cuda | hip)
    [ $# -eq 3 ] || { usage >&2 && exit 2; }
    "$2" "$3" | sort
    exit 0
    ;;
  "" | --spills) ;;
  *)
    usage >&2
    exit 2
    ;;
esac
all=$(mktemp)
trap 'rm -f "$all" "$all.code"' EXIT
for module in cuda hip; do
  [ -d "$build/$module" ] || continue
  for target in $(targets $module "$all.code"); do "$0" "$build" $module "$target"; done
done >"$all"
printf '%-8s %9s %8s %7s  %s\n' target registers spilled shared kernel
while read -r target name registers spilled shared; do
  [ -z "${2:-}" ] || [ "$spilled" -gt 0 ] || continue
  printf '%-8s %9d %8d %7d  %s\n' "$target" "$registers" "$spilled" "$shared" "$name"
done <"$all" | c++filt |
  sed -E 's/_INTERNAL_[0-9a-z_]*:://g; s/\(([a-z_]+)\)([0-9])/\2/g; s/(void )?([a-z_]+(<[^(]*>)?)\(.*/\2/; s/::[^>]*\{lambda[^}]*#([0-9]+)\}/ \1/; s/([0-9])u\b/\1/g; s/(<launch_[a-z_]+(<[a-z_0-9]+>)?)$/\1>/'
