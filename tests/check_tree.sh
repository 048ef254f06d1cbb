#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the sources themselves: layers, sizes, headers, formatting, and that no path of a developer's machine is in
# them. Prints every offence; the exit status is their presence. Usage: tests/check_tree.sh [ROOT]
set -eu
cd "${1:-$(dirname "$0")/..}"
bad=0
offence() {
  echo "$*"
  bad=1
}

sources=$(find core backends models tools tests -type f \( -name '*.c' -o -name '*.h' -o -name '*.def' -o -name '*.sh' \) |
  sort)
texts=$(find core backends models tools tests cmake docs .ci -type f ! -name '*.safetensors' ! -name '*.svg' ! -name '*.png' \
  ! -name '*.gz' ! -name '*.pyc' | sort)
texts="$texts README.md CMakeLists.txt CMakePresets.json"

# Layers: a file of `layer` includes nothing of the layers in `above`.
layer_check() {
  layer=$1
  above=$2
  # The test cases of an op stand in its family file and alone include the tests' description of a case.
  found=$(grep -rnE "^ *# *include \"($above)/" "$layer" --include='*.c' --include='*.h' --include='*.def' |
    grep -vE '^core/ops/[a-z]+\.c:[0-9]+:#include "tests/support/cases\.h"' || true)
  [ -z "$found" ] || offence "$found
  ^ $layer/ may not include $above"
}
layer_check core 'backends|models|tools|tests'
layer_check backends 'models|tools|tests'
layer_check models 'backends|tools|tests'
layer_check tools 'tests'

for file in $sources; do
  lines=$(wc -l <"$file")
  case $file in
    *.h) limit=300 ;;
    *) limit=600 ;;
  esac
  [ "$lines" -le "$limit" ] || offence "$file: $lines lines; at most $limit"
  head -n 2 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || offence "$file: no licence line at the top"
done

# What the root holds; build folders and outputs aside, which are ignored.
found=$(git ls-files 2>/dev/null | sed 's#/.*##' | sort -u | grep -vxE '\.ci|\.clang-format|\.gitignore|CMakeLists\.txt|CMakePresets\.json|LICENSE|README\.md|backends|cmake|core|docs|models|shaders|tests|tools' || true)
[ -z "$found" ] || offence "$found
  ^ does not belong in the root"

# The patterns are pieced together, so that this file does not hold what it looks for.
machine='(^|[^A-Za-z0-9_.$}])/(wo''rk|ho''me|ro''ot)/[A-Za-z]'
later='TO''DO|FIX''ME|XX''X:'
# shellcheck disable=SC2086 # one word a file
found=$(grep -nE "$machine|$later" $texts || true)
[ -z "$found" ] || offence "$found
  ^ paths of one machine, or work put off"

formatter=
for name in clang-format-14 clang-format; do
  if command -v $name >/dev/null 2>&1 && $name --version | grep -q 'version 14\.'; then
    formatter=$name
    break
  fi
done
if [ -n "$formatter" ]; then
  # shellcheck disable=SC2086 # one word a file
  found=$(printf '%s\n' $sources | grep '\.[ch]$' | xargs $formatter --dry-run -Werror 2>&1 |
    sed -n 's/^\([^: ]*\):[0-9]*:[0-9]*: error: .*/\1/p' | sort -u)
  [ -z "$found" ] || offence "$found
  ^ run $formatter -i on them"
else
  echo "skipped: formatting; clang-format 14 is not here"
fi
exit $bad
