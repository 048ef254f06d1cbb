#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The main job, small: makes and pretrains a mixture-of-experts model, post-trains it on one domain without and with
# Router Prior Bias, and compares what routing was kept. Its parts are in tools/demo/.
set -eu

usage() {
  cat <<'TEXT'
usage: tools/demo.sh [--out DIR] [--seed N] [--no-setup] [--help]
Installs what is missing, builds, then trains three small models and compares two of them with the first.
  --out DIR    where models, data and the picture go (out/demo); what an earlier run left there is replaced
  --seed N     seed of the weights and of the order of samples (1)
  --no-setup   install nothing
TEXT
}

cd "$(dirname "$0")/.."
out=out/demo
seed=1
setup=yes
while [ $# -gt 0 ]; do
  case $1 in
    --out | --seed)
      if [ $# -lt 2 ]; then
        echo "demo.sh: $1 wants a value" >&2
        exit 2
      fi
      if [ "$1" = --out ]; then out=$2; else seed=$2; fi
      shift
      ;;
    --no-setup) setup=no ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "demo.sh: unknown argument '$1'" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift
done

[ "$setup" = no ] || tools/setup.sh
mkdir -p "$out"
log=$out/log.txt
: >"$log"
quietly() {
  if ! "$@" >>"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "demo.sh: failed: $*" >&2
    exit 1
  fi
}
say() { printf '%s\n' "$*"; }
clock=$(date +%s)
took() {
  now=$(date +%s)
  say "   $((now - clock)) s"
  clock=$now
}

say "Building (build/, release)"
quietly cmake --preset release
quietly cmake --build build --target kedge -j "$(nproc)"
took
start=$clock
kedge=build/kedge

say "Data: arithmetic, facts and logic, prompts with answers; 2000 of each to pretrain, 100 to hold out, 1500 to shift"
for domain in arithmetic facts logic; do
  quietly $kedge corpus --domain $domain --count 2000 --seed 1 --out "$out/$domain.jsonl"
  quietly $kedge corpus --domain $domain --split test --count 100 --out "$out/held-$domain.jsonl"
done
quietly $kedge corpus --domain arithmetic --count 1500 --seed 3 --out "$out/shift.jsonl"

quietly $kedge tokenizer train --data "$out/arithmetic.jsonl" --data "$out/facts.jsonl" --data "$out/logic.jsonl" \
  --vocab-size 512 --out "$out/tokenizer"
rm -rf "$out/random" "$out/base" "$out/none" "$out/rpb"
quietly $kedge init --config tools/demo/config.json --tokenizer "$out/tokenizer" --seed "$seed" --out "$out/random"
say "Base model: 1.3 M parameters, 4 layers of 16 experts, top 4; pretrained on the three domains"
quietly $kedge train tools/demo/pretrain.yaml model="$out/random" seed="$seed" data_seed="$seed" output_dir="$out/base" \
  dataset="[$out/arithmetic.jsonl, $out/facts.jsonl, $out/logic.jsonl]"
took

say "Shift: post-training on arithmetic alone, router: none"
quietly $kedge train tools/demo/shift.yaml model="$out/base" seed="$seed" data_seed="$seed" output_dir="$out/none" \
  dataset="$out/shift.jsonl"
took
say "Shift: the same samples in the same order, router: rpb (its prior is one pass of the base model over them)"
quietly $kedge prior --model "$out/base" --data "$out/shift.jsonl" --max-length 128 --out "$out/prior.safetensors"
quietly $kedge train tools/demo/shift.yaml model="$out/base" seed="$seed" data_seed="$seed" output_dir="$out/rpb" \
  dataset="$out/shift.jsonl" router.intervention=rpb router.prior="$out/prior.safetensors"
took

say "Probing both against the base on held-out text of all three domains"
# loss MODEL DOMAIN: mean negative log-probability of the held-out answers, nats a token
loss() {
  quietly $kedge score --model "$out/$1" --data "$out/held-$2.jsonl" --out "$out/score.safetensors"
  sed -n 's/^answers: .*mean nll \([0-9.]*\).*/\1/p' "$log" | tail -n 1
}
: >"$out/table.txt"
for model in none rpb; do
  if ! $kedge probe --base "$out/base" --post "$out/$model" --data "$out/held-arithmetic.jsonl" \
    --data "$out/held-facts.jsonl" --data "$out/held-logic.jsonl" >"$out/probe-$model.txt" 2>>"$log"; then
    tail -n 20 "$log" >&2
    exit 1
  fi
  awk '$1 ~ /^[0-9]+$/ && NF == 11 { print $1, $3, $4, $5, $6 }' "$out/probe-$model.txt" >"$out/layers-$model.dat"
done
for model in base none rpb; do
  case $model in
    base) kept="1 1 0 0" ;;
    *) kept=$(awk '$1 == "mean" { print $3, $4, $5, $6 }' "$out/probe-$model.txt") ;;
  esac
  say "$model $kept $(loss $model arithmetic) $(loss $model facts) $(loss $model logic)" >>"$out/table.txt"
done
took
if command -v gnuplot >/dev/null 2>&1; then
  quietly gnuplot -e "folder='$out'; picture='$out/retention.svg'" tools/demo/retention.gp
fi

say ""
awk '
  BEGIN {
    print "                routing on held-out text, against the base      held-out loss of answers, nats a token"
    print "            top-4 overlap  same best expert     TVD  JSD nats     arithmetic     facts     logic"
  }
  { printf "%-6s %18.4f %17.4f %7.4f %9.4f %14.4f %9.4f %9.4f\n", $1, $2, $3, $4, $5, $6, $7, $8 }
  { overlap[$1] = $2; tvd[$1] = $4; shifted[$1] = $6; kept[$1] = ($7 + $8) / 2 }
  function change(a, b, digits) { return sprintf("%." digits "f instead of %." digits "f", b, a) }
  END {
    print ""
    print "What it shows. Both runs began from the same base and saw the same samples in the same order; only the router"
    print "differs. With rpb expert use moved by a TVD of " change(tvd["none"], tvd["rpb"], 4) ", the top-4 overlap with the"
    print "base is " change(overlap["none"], overlap["rpb"], 4) ", the loss on the two domains left behind is"
    print change(kept["none"], kept["rpb"], 3) " (base: " sprintf("%.3f", kept["base"]) "), and the loss on the new one is"
    print change(shifted["none"], shifted["rpb"], 3) " (base: " sprintf("%.3f", shifted["base"]) "). The bias is on in training alone: all"
    print "numbers here are of the exported models, without it."
    better = (overlap["rpb"] > overlap["none"]) + (tvd["rpb"] < tvd["none"])
    print "In this run rpb kept " (better == 2 ? "more" : better ? "about as much" : "less") " of the routing" \
      (better == 1 ? ": one measure is better, the other worse." : " by both measures.")
    print ""
    print "What it does not show. Whether a large model keeps its abilities: this one has 1.3 M parameters, its text is"
    print "generated, and one seed is one sample (--seed N draws another). The paper'"'"'s models have 16 to 30 billion."
  }' "$out/table.txt"
prompt="Dan has 14 apples. Cleo has 5 times as many as Dan, and Olga has 6 more than Cleo. How many apples does Olga have?"
say ""
say "$prompt"
for model in base none rpb; do
  say "  $model: $($kedge generate --model "$out/$model" --max-new-tokens 40 --prompt "$prompt" 2>>"$log")"
done
say ""
say "Models, probes and log: $out; everything after the build took $(($(date +%s) - start)) s."
