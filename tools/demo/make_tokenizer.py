# SPDX-License-Identifier: Apache-2.0
"""Makes tokenizer.json and tokenizer_config.json of the demonstration: byte-level BPE of 512 tokens, digits one by one.

Usage: make_tokenizer.py CORPUS.jsonl ...    (needs the Python package tokenizers 0.23; kedge corpus writes the files)
"""
import json
import sys
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
lines = [json.loads(line) for path in sys.argv[1:] for line in open(path)]
tokenizer = Tokenizer(models.BPE())
words = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"
tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Split(Regex(words), "isolated"),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
])
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=[END], show_progress=False,
                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
tokenizer.train_from_iterator((line[key] for line in lines for key in ("prompt", "completion")), trainer)
here = Path(__file__).parent
tokenizer.save(str(here / "tokenizer.json"))
(here / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "add_bos_token": False}) + "\n")
