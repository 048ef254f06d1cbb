#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what Kedge needs on Debian 12+ and Ubuntu 24.04+: compiler, build tools and libraries. Says nothing and
# changes nothing where all of it is there.
set -eu

usage() {
  cat <<'TEXT'
usage: tools/setup.sh [--clang] [--help]
Installs Kedge's Debian/Ubuntu packages where they are missing (through sudo unless run as root).
  --clang   also clang, its OpenMP runtime and clang-format, for the tsan preset and the check of formatting
TEXT
}

packages="build-essential cmake ninja-build pkg-config git libopenblas-openmp-dev libjansson-dev libyaml-dev
  libpcre2-dev libutf8proc-dev libxxhash-dev libcmocka-dev gnuplot-nox"
for argument in "$@"; do
  case $argument in
    --clang) packages="$packages clang-14 libomp-14-dev clang-format-14" ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "setup.sh: unknown argument '$argument'; expected --clang or --help" >&2
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

missing=
for package in $packages; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing="$missing $package"
done
# pkg-config may come from pkgconf, cmake or ninja from elsewhere: what answers need not be installed again.
for pair in pkg-config:pkg-config cmake:cmake ninja-build:ninja git:git; do
  if command -v "${pair#*:}" >/dev/null 2>&1; then
    missing=$(printf '%s ' $missing | sed "s/\(^\| \)${pair%%:*} /\1/")
  fi
done
[ -n "$(printf '%s' $missing)" ] || exit 0

as_root=
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null 2>&1; then
    echo "setup.sh: not root and no sudo. As root run: apt-get install $missing" >&2
    exit 1
  fi
  as_root="sudo"
fi
echo "setup.sh: installing$(printf ' %s' $missing)"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install_missing() {
  # shellcheck disable=SC2086 # one word a package
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing >"$log" 2>&1
}
# A fresh machine has no lists of packages; a stale one has lists of what is no longer there.
if ! install_missing; then
  if ! $as_root apt-get update >"$log" 2>&1 || ! install_missing; then
    cat "$log" >&2
    echo "setup.sh: could not install$(printf ' %s' $missing)" >&2
    exit 1
  fi
fi
