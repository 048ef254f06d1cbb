#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a compiler of kernels and keeps what it says of registers and spills for tests/test_gpu_kernels.sh; shows it only
# when the compiler fails. Usage: gpu-compile.sh REPORT COMPILER [ARGUMENTS...]
set -u
report=$1
shift
status=0
"$@" >"$report" 2>&1 || status=$?
[ $status -ne 0 ] || exit 0
cat "$report" >&2
rm -f "$report"
exit $status
