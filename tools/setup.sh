#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what Kedge needs on Debian 12+ and Ubuntu 24.04+: compiler, build tools and libraries. Says nothing and
# changes nothing where all of it is there.
set -eu

usage() {
  cat <<'TEXT'
usage: tools/setup.sh [--clang] [--format] [--hip] [--help]
Installs Kedge's Debian/Ubuntu packages where they are missing (through sudo unless run as root).
  --clang    also clang 14 and its OpenMP runtime, for the tsan preset and for fuzzing
  --hip      also hipcc with its runtime's headers where the system has them, for the module hip (over 1 GB)
  --format   also clang-format 14 where the system has it, for the check of formatting
TEXT
}

packages="build-essential cmake ninja-build pkg-config git libopenblas-openmp-dev libjansson-dev libyaml-dev
  libpcre2-dev libutf8proc-dev libxxhash-dev zlib1g-dev libigraph-dev libcmocka-dev gnuplot-nox
  libvulkan-dev glslc mesa-vulkan-drivers vulkan-validationlayers libopenmpi-dev openmpi-bin"
optional=
for argument in "$@"; do
  case $argument in
    --clang) packages="$packages clang-14 libclang-rt-14-dev libomp-14-dev" ;;
    --format) optional="$optional clang-format-14" ;;
    --hip) optional="$optional hipcc libamdhip64-dev rocm-device-libs" ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "setup.sh: unknown argument '$argument'; expected --clang, --format, --hip or --help" >&2
      exit 2
      ;;
  esac
done

if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
  echo "setup.sh: no apt here. Install what these Debian packages hold, by your system's own means:" >&2
  # shellcheck disable=SC2086 # one word a package
  printf '  %s\n' $packages >&2
  exit 1
fi

absent() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null || true)" != installed ]; }
missing=
for package in $packages; do
  # pkg-config may be pkgconf, cmake or ninja may come from elsewhere: what answers need not be installed again.
  case $package in
    pkg-config | cmake | git) command=$package ;;
    ninja-build) command=ninja ;;
    *) command= ;;
  esac
  if [ -n "$command" ] && command -v "$command" >/dev/null 2>&1; then continue; fi
  if absent "$package"; then missing="$missing $package"; fi
done
extra=
for package in $optional; do
  if absent "$package"; then extra="$extra $package"; fi
done
[ -n "$missing$extra" ] || exit 0

as_root=
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null 2>&1; then
    as_root=sudo
  elif [ -n "$missing" ]; then
    echo "setup.sh: not root and no sudo. As root run: apt-get install$missing" >&2
    exit 1
  else
    exit 0
  fi
fi
echo "setup.sh: installing$missing$extra"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >"$log" 2>&1
}
# shellcheck disable=SC2086 # one word a package
if [ -n "$missing" ] && ! install $missing; then
  # A fresh machine has no lists of packages; a stale one has lists of what is no longer there.
  if ! $as_root apt-get update >"$log" 2>&1 || ! install $missing; then
    cat "$log" >&2
    echo "setup.sh: could not install$missing" >&2
    exit 1
  fi
fi
# shellcheck disable=SC2086
if [ -n "$extra" ] && ! install $extra; then
  echo "setup.sh: not here:$extra; what wants them is skipped"
fi
