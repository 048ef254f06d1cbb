#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks Kedge on a card of a machine without package registries: built here, carried there as one file of at most 64 MiB,
# run there. The result is one JSON document; a check that fails is in it, and the exit status says so.
set -eu

usage() {
  cat <<'TEXT'
usage: tools/device-check.sh build FILE.tar.gz [--arch ARCH] [--build FOLDER]
       device-check.sh run [FILE.json]
  build   compiles for ARCH (90a) into FOLDER (build-device) and bundles program, modules, tests, libraries and the small
          files that the tests read
  run     in the unpacked bundle, on the machine with the card: the op suite, products by wgmma against the other
          kernels (where they fail, all else goes on without), gradients and interventions, ten training steps beside
          the CPU, compute-sanitizer where it is there, and products at the shapes of Moonlight and Qwen3 with and
          without wgmma beside PyTorch's where it is there. Ends within 8 minutes. Prints the JSON, or writes it to
          FILE.json; without a card it says so in a line, and in the JSON
TEXT
}

# ---- Here

bundle() {
  file=$1
  shift
  arch=90a
  build=build-device
  while [ $# -gt 0 ]; do
    case $1 in
      --arch) arch=$2 ;;
      --build) build=$2 ;;
      *)
        usage >&2
        exit 2
        ;;
    esac
    shift 2
  done
  root=$(cd "$(dirname "$0")/.." && pwd)
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKEDGE_CUDA=ON "-DKEDGE_CUDA_ARCHS=$arch" >/dev/null
  ninja -C "$build" kedge kedge-cuda test_sim test_sim_models >/dev/null
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  out=$folder/kedge-device-check
  mkdir -p "$out/lib" "$out/tests/golden/tokenizer"
  cp "$root/tools/device-check.sh" "$root/tests/peers/device.py" "$out/"
  cp "$build/kedge" "$build/test_sim" "$build/test_sim_models" "$build/libkedge-cuda.so" "$out/"
  cp -r "$root/tests/golden/tokenizer/tiny" "$out/tests/golden/tokenizer/"
  # The C library and its parts are the machine's own.
  for binary in "$build/kedge" "$build/test_sim" "$build/test_sim_models" "$build/libkedge-cuda.so"; do ldd "$binary"; done |
    awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' | while read -r library; do cp -L "$library" "$out/lib/"; done
  strip --strip-unneeded "$out/lib"/*.so* "$out/kedge" "$out/libkedge-cuda.so" 2>/dev/null || true
  tar -C "$folder" -czf "$file" kedge-device-check
  size=$(wc -c <"$file")
  echo "$file: $size bytes; there: tar -xzf $(basename "$file") && kedge-device-check/device-check.sh run"
  if [ "$size" -gt 67108864 ]; then
    echo "device-check.sh: the bundle is larger than 64 MiB" >&2
    exit 1
  fi
}

# ---- There

failed=0
wgmma=0
entries=
deadline=$(($(date +%s) + 470))
# Of some seconds, those that are left: a second at least, since `timeout 0` would wait for ever.
within() {
  left=$((deadline - $(date +%s)))
  [ "$left" -ge 1 ] || left=1
  if [ "$1" -lt "$left" ]; then echo "$1"; else echo "$left"; fi
}
# check NAME SECONDS COMMAND...: one entry of "checks"; what it printed is kept in NAME.log.
check() {
  name=$1
  limit=$(within "$2")
  shift 2
  begin=$(date +%s)
  code=0
  timeout --kill-after=5 "$limit" "$@" >"$work/$name.log" 2>&1 || code=$?
  passed=true
  if [ $code -ne 0 ]; then
    passed=false
    failed=1
    tail -n 5 "$work/$name.log" >&2
  fi
  last=$(grep -aE 'PASSED|ERROR SUMMARY|RACECHECK SUMMARY|comparisons|losses of' "$work/$name.log" | tail -n 4 |
    tr -d '"\\' | tr '\n' ';' | cut -c 1-400)
  entries="$entries${entries:+,}
    {\"name\": \"$name\", \"passed\": $passed, \"exit\": $code, \"seconds\": $(($(date +%s) - begin)), \"says\": \"$last\"}"
}
absent() {
  entries="$entries${entries:+,}
    {\"name\": \"$1\", \"passed\": null, \"says\": \"$2\"}"
}
# The JSON that a command printed, or null.
measured() {
  if [ -s "$work/$1.json" ]; then cat "$work/$1.json"; else echo null; fi
}

run() {
  here=$(cd "$(dirname "$0")" && pwd)
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  blas=$(python3 -c 'import glob, sysconfig; p = sysconfig.get_paths()["purelib"]
print(":".join(sorted({f.rsplit("/", 1)[0] for f in glob.glob(p + "/nvidia/**/libcublasLt.so*", recursive=True)})))' 2>/dev/null || true)
  export LD_LIBRARY_PATH="$here/lib:$blas:/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}"
  export KEDGE_MODULES="$here" KEDGE_BIN="$here/kedge" KEDGE_SOURCE="$here" OMP_WAIT_POLICY=passive
  card=$("$here/kedge" devices | sed -n 's/^cuda *//p' | tr -d '"\\')
  case $card in
    cuda\ *) ;;
    *)
      echo "device-check.sh: no card to check: $card" >&2
      printf '{\n  "card": null,\n  "says": "%s",\n  "checks": []\n}\n' "$card"
      exit 1
      ;;
  esac
  # Own products and those of cuBLASLt, each twice, whose bits must be the same.
  KEDGE_SIM="cuda:blas=0,wgmma=0 cuda:blas=0,wgmma=0 cuda:wgmma=0 cuda:wgmma=0" check ops 90 "$here/test_sim"
  case $card in
    *wgmma*)
      before=$failed
      case $card in *disagrees*) failed=1 ;; esac
      KEDGE_OPS="matmul grouped_matmul grouped_wgrad head_loss head_loss_grad" KEDGE_SIM="cuda:blas=0 cuda:blas=0" \
        check wgmma 60 "$here/test_sim"
      if [ $failed -ne "$before" ]; then export KEDGE_GPU_WGMMA=0; else wgmma=1; fi
      ;;
    *) absent wgmma "the card or the build has none" ;;
  esac
  KEDGE_SIM=cuda check models 120 "$here/test_sim_models"
  if command -v compute-sanitizer >/dev/null 2>&1; then
    small="matmul grouped_matmul grouped_wgrad attention attention_grad attention_cached head_loss head_loss_grad dispatch topk embed_grad rms_norm rms_norm_grad sum"
    # The second does not know how products by wgmma are ordered.
    KEDGE_OPS=$small KEDGE_SIM=cuda:blas=0,graphs=0 check memcheck 60 \
      compute-sanitizer --tool memcheck --error-exitcode 9 "$here/test_sim"
    KEDGE_OPS=$small KEDGE_SIM=cuda:blas=0,graphs=0,wgmma=0 check racecheck 60 \
      compute-sanitizer --tool racecheck --error-exitcode 9 "$here/test_sim"
  else
    absent memcheck "no compute-sanitizer here"
    absent racecheck "no compute-sanitizer here"
  fi
  shapes="--shape moonlight --shape qwen3 --dtype bf16 --seconds 0.5 --json"
  # shellcheck disable=SC2086 # one word an option
  timeout "$(within 45)" "$here/kedge" bench products $shapes --backend cuda:blas=0,wgmma=0 >"$work/own.json" 2>"$work/own.log" || failed=1
  # shellcheck disable=SC2086
  if [ $wgmma -eq 1 ]; then
    timeout "$(within 45)" "$here/kedge" bench products $shapes --backend cuda:blas=0 >"$work/wgmma.json" 2>"$work/wgmma.log" || failed=1
  fi
  # shellcheck disable=SC2086
  timeout "$(within 45)" "$here/kedge" bench products $shapes --backend cuda >"$work/blas.json" 2>"$work/blas.log" || failed=1
  timeout "$(within 60)" python3 "$here/device.py" >"$work/peer.json" 2>"$work/peer.log" || : >"$work/peer.json"
  cat <<JSON
{
  "card": "$card",
  "driver": "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)",
  "checks": [$entries
  ],
  "own_products": $(measured own),
  "own_products_wgmma": $(measured wgmma),
  "library_products": $(measured blas),
  "pytorch": $(measured peer)
}
JSON
  exit $failed
}

case ${1:-} in
  build)
    [ $# -ge 2 ] || { usage >&2 && exit 2; }
    shift
    bundle "$@"
    ;;
  run)
    if [ $# -gt 1 ]; then
      exec >"$2"
    fi
    run
    ;;
  -h | --help) usage ;;
  *)
    usage >&2
    exit 2
    ;;
esac
