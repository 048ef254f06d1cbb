#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Models, golden operations and gradients on each instruction set of this machine, forced by KEDGE_ISA; the ops suite
# runs all of them by itself. Usage: tests/test_isa.sh BUILD
set -eu
build=$1
ran=0
for isa in base avx2 avx512 avx512bf16 amx; do
  export KEDGE_ISA=$isa
  if ! "$build/kedge" bench ops --seconds 0 --dtype bf16 --json >/dev/null 2>&1; then
    echo "skipped: this machine has no $isa"
    continue
  fi
  for suite in test_golden_ops test_models test_determinism; do
    "$build/$suite" >"$build/test_isa.log" 2>&1 || {
      cat "$build/test_isa.log"
      echo "$suite fails with KEDGE_ISA=$isa"
      exit 1
    }
  done
  "$build/kedge" gradcheck --backend cpu --intervention rpb >"$build/test_isa.log" || {
    cat "$build/test_isa.log"
    exit 1
  }
  ran=$((ran + 1))
done
# A name that is none must not fall back to another set.
if KEDGE_ISA=avx9 "$build/kedge" bench ops --seconds 0 >/dev/null 2>&1; then
  echo "KEDGE_ISA=avx9 was accepted"
  exit 1
fi
echo "$ran instruction sets"
[ "$ran" -ge 1 ]
