#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# An installed Kedge serves a small program: cmake --install into an empty prefix, then compile and run against the shared
# and the static library with what pkg-config says. Usage: tests/test_install.sh BUILD COMPILER [FLAGS...]
set -eu
build=$1
compiler=$2
shift 2
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "$build" --prefix "$prefix/first" >/dev/null
# The tree must not remember where it was installed.
mv "$prefix/first" "$prefix/kedge"
pc=$(find "$prefix/kedge" -name kedge.pc)
[ -n "$pc" ] || { echo "no kedge.pc was installed" && exit 1; }
libdir=$(dirname "$(dirname "$pc")")
export PKG_CONFIG_PATH="$(dirname "$pc"):${PKG_CONFIG_PATH:-}"

cat >"$prefix/program.c" <<'SOURCE'
#include <models/kedge_models.h>
#include <stdio.h>
int main(void) {
  kedge_model *model = NULL;
  kedge_device *device = NULL;
  if (kedge_device_open("cpu", NULL, &device) != KEDGE_OK) return 1;
  kedge_status status = kedge_model_load(device, "/nonexistent", KEDGE_F32, &model);
  printf("kedge %s: %s: %s\n", kedge_version(), kedge_status_name(status), kedge_message());
  kedge_device_close(device);
  return status == KEDGE_OK;
}
SOURCE

check() {
  printed=$("$@")
  echo "$printed"
  case $printed in
    "kedge "*": ERR_IO: "*/nonexistent*) ;;
    *)
      echo "expected version, ERR_IO and the path"
      exit 1
      ;;
  esac
}
# shellcheck disable=SC2046 # one word a flag
"$compiler" -std=c11 -Wall -Wextra -Werror "$@" "$prefix/program.c" -o "$prefix/shared" $(pkg-config --cflags --libs kedge)
check env LD_LIBRARY_PATH="$libdir" "$prefix/shared"
ldd "$prefix/shared" | grep -q libkedge || { echo "the program is not linked with libkedge.so"; exit 1; }

rm "$libdir"/libkedge.so*
# shellcheck disable=SC2046
"$compiler" -std=c11 -Wall -Wextra -Werror "$@" "$prefix/program.c" -o "$prefix/static" \
  $(pkg-config --static --cflags --libs kedge)
check "$prefix/static"
