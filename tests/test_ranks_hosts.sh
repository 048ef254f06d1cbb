#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two hosts: two network namespaces joined by a cable, MPI over TCP between them. A run on both ends as on one; after
# the cable is cut, the ranks tell so in one line and end within 30 seconds, where TCP alone would wait for minutes.
# Usage: test_ranks_hosts.sh BUILD_FOLDER SOURCE_FOLDER. Status 77: not possible here.
set -eu
build=$1
source=$2
kedge=$build/kedge
a=kedge-a-$$
b=kedge-b-$$
skip() {
  echo "skipped: two hosts; $*"
  exit 77
}
[ "$(id -u)" -eq 0 ] || skip "network namespaces need root"
command -v ip >/dev/null && command -v unshare >/dev/null && command -v mpirun >/dev/null || skip "no ip, unshare or mpirun"
[ -r "$build/libkedge-mpi.so" ] || skip "the module for MPI was not built"
ip netns add "$a" 2>/dev/null || skip "no right to make a network namespace"

folder=$(mktemp -d)
launcher=
cleanup() {
  [ -z "$launcher" ] || kill -9 "$launcher" 2>/dev/null || true
  for name in "$a" "$b"; do
    for pid in $(ip netns pids "$name" 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
    ip netns del "$name" 2>/dev/null || true
  done
  rm -rf "$folder"
}
trap cleanup EXIT
ip netns add "$b"
ip link add kva$$ type veth peer name kvb$$ || skip "no right to make a virtual cable"
ip link set kva$$ netns "$a"
ip link set kvb$$ netns "$b"
ip netns exec "$a" sh -c "ip addr add 10.77.0.1/24 dev kva$$; ip link set kva$$ up; ip link set lo up"
ip netns exec "$b" sh -c "ip addr add 10.77.0.2/24 dev kvb$$; ip link set kvb$$ up; ip link set lo up"

cd "$folder"
cat >config.json <<'JSON'
{"model_type": "qwen3_moe", "vocab_size": 512, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 8,
 "num_experts_per_tok": 2, "norm_topk_prob": true, "tie_word_embeddings": false, "rms_norm_eps": 1e-6,
 "rope_theta": 10000.0, "max_position_embeddings": 512, "hidden_act": "silu", "initializer_range": 0.2,
 "torch_dtype": "float32", "decoder_sparse_step": 1, "mlp_only_layers": [], "bos_token_id": 0, "eos_token_id": 0,
 "attention_bias": false}
JSON
i=0
while [ $i -lt 16 ]; do
  echo "{\"prompt\": \"Ann has $i apples and gets 4 more. How many?\", \"completion\": \" $i + 4\"}"
  i=$((i + 1))
done >train.jsonl
"$kedge" init --config config.json --tokenizer "$source/tests/golden/tokenizer/tiny" --out base --seed 5 >/dev/null 2>&1
# What mpirun takes for ssh: a shell on the other host.
cat >agent.sh <<AGENT
#!/bin/sh
shift
exec ip netns exec $b unshare -u sh -c "hostname host-b; \$*"
AGENT
chmod +x agent.sh

# run OUTPUT MORE...: on both hosts, in the background.
run() {
  out=$1
  shift
  ip netns exec "$a" unshare -u sh -c "hostname host-a; exec mpirun -n 2 -H 10.77.0.1:1,10.77.0.2:1 --allow-run-as-root \
    --bind-to none --mca plm_rsh_agent $folder/agent.sh --mca btl self,tcp --mca btl_tcp_if_include 10.77.0.0/24 \
    --mca oob_tcp_if_include 10.77.0.0/24 --mca mpi_yield_when_idle 1 --mca orte_tmpdir_base $folder -wdir $folder \
    $kedge train model_name_or_path=base dataset=[train.jsonl] output_dir=$out max_length=160 threads=1 logging_steps=1 \
    per_device_train_batch_size=4 expert_parallel=2 $*" >"$out.log" 2>&1 </dev/null &
  launcher=$!
}

run whole max_steps=5
wait $launcher || { cat whole.log; exit 1; }
launcher=
grep -q 'rank 1 of 2: host host-b' whole.log || { cat whole.log; exit 1; }
[ -s whole/model.safetensors ]

run cut max_steps=1000000 save_steps=10 save_total_limit=2
seconds=0
until ls -d cut/checkpoint-*0 >/dev/null 2>&1; do
  seconds=$((seconds + 1))
  [ $seconds -lt 60 ] || { cat cut.log; exit 1; }
  sleep 1
done
ip netns exec "$a" ip link set kva$$ down
start=$(date +%s)
while pgrep -f "$kedge train model_name_or_path=base dataset=.train.jsonl. output_dir=cut" | while read -r pid; do
  [ "$(readlink "/proc/$pid/exe")" != "$kedge" ] || echo "$pid"
done | grep -q .; do
  seconds=$(($(date +%s) - start))
  [ $seconds -lt 30 ] || { echo "ranks still run 30 seconds after the cable was cut"; cat cut.log; exit 1; }
  sleep 1
done
seconds=$(($(date +%s) - start))
[ "$(grep -c 'kedge train: rank 0: nothing heard of rank 1 for' cut.log)" -eq 1 ] || { cat cut.log; exit 1; }
echo "two hosts trained; with the cable cut all ranks had ended after $seconds seconds"
