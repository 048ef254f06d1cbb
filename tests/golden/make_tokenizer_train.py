# SPDX-License-Identifier: Apache-2.0
"""Makes tokenizer_train/: texts, and the tokenizer that the `tokenizers` library's trainer learns from them.

Usage: make_tokenizer_train.py    (needs the Python package tokenizers 0.23)
"""
import json
import random
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
here = Path(__file__).parent / "tokenizer_train"
draw = random.Random(7)
words = ["anchor", "anchors", "anna", "banana", "nana", "42", "1007", "über", "straße", "漢字", "don't", "--", "...",
         "\n\n", "  ", "\t", "aaaa", "aaaaa", "ab" * 9, "é", "🙂", END]
lines = []
for _ in range(40):
    text = " ".join(draw.choice(words) for _ in range(draw.randint(1, 12)))
    lines.append({"text": text} if draw.random() < 0.5 else {"prompt": text, "completion": draw.choice(words), "answer": "x"})
(here / "texts.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Split(Regex(r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"), "isolated"),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
])
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=[END, "<|pad|>"], show_progress=False,
                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
tokenizer.train_from_iterator((line[key] for line in lines for key in ("prompt", "completion", "text") if key in line),
                              trainer)
tokenizer.save(str(here / "tokenizer.json"))
