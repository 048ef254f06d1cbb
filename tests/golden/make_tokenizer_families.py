# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/tokenizer/families/: one small tokenizer a pipeline of the model families, and what the Python libraries
`tokenizers` and `tiktoken` make of texts and of code points with it. Conversations with them: make_chats.py.

usage: make_tokenizer_families.py SHARED_FOLDER

<family>/           a model directory's tokenizer files; kimi/ has ranks as tiktoken reads them
real.tsv            a row for each row of real text (those of make_tokenizer.py), a column a family: 32 bits of the hash of the ids
texts.jsonl         texts of our own with their ids, a column a family
codes.tsv           a block of 4,096 code points a row: hash over the ids of every code point alone and then between two letters
A hash is FNV-1a over the ids as little-endian int32, 64 bits; real.tsv keeps the upper 32. Deterministic.
"""
import base64
import json
import os
import sys

import tiktoken
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer", "families")

# Code points that Unicode 14, the version of PCRE2 10.42, does not have and the reference libraries (Unicode 16) have: in the
# patterns they are letters there, or marks and numbers (kimi's pattern alone tells marks from others), and nothing here.
LATER = {"letter since Unicode 15 or later": """1C89-1C8A A7CB-A7CD A7DA-A7DC 105C0-105F3 10D4A-10D65 10D6F-10D85 10EC2-10EC4 1123F-11240 11380-11389 1138B 1138E 11390-113B5
113B7 113D1 113D3 11BC0-11BE0 11F02 11F04-11F10 11F12-11F33 1342F 13441-13446 13460-143FA 16100-1611D 16D40-16D6C 18CFF 1B132
1B155 1DF25-1DF2A 1E030-1E06D 1E4D0-1E4EB 1E5D0-1E5ED 1E5F0 2B739 2EBF0-2EE5D 31350-323AF""",
         "mark or number since Unicode 15 or later": """897 CF3 ECE 10D40-10D49 10D69-10D6D 10EFC-10EFF 11241 113B8-113C0 113C2 113C5 113C7-113CA 113CC-113D0 113D2 113E1-113E2
116D0-116E3 11BF0-11BF9 11F00-11F01 11F03 11F34-11F3A 11F3E-11F42 11F50-11F5A 13440 13447-13455 1611E-16139 16D70-16D79
1CCF0-1CCF9 1D2C0-1D2D3 1E08F 1E4EC-1E4F9 1E5EE-1E5EF 1E5F1-1E5FA"""}
EXCLUDED = sorted((int(part.split("-")[0], 16), int(part.split("-")[-1], 16), reason)
                  for reason, parts in LATER.items() for part in parts.split())

TEXT = """The keeper of the light writes in his book every hour: the wind, the height of the water, and the ships that he sees.
"Two sails to the north," he writes, "and one to the east." He doesn't sleep until the sun is up, and he's never late; they've
asked him WHY, and he'll say: it's 4 o'clock. In 1987 the lamp burned 365 nights; in 2024 it burned 366. 12 + 30 = 42, 7 * 6 = 42.
If each of 9 ships has 4 boats, how many boats are there? Let us count: 9 * 4 = 36. The answer is 36. We'd better check it again.
def height(hours, tide=1.5):
    if hours is None:
        return 0.0
    total = 0
    for hour in range(hours):
        total += tide * (hour % 12)
    return total  # in metres

for (int i = 0; i < count; i++) { sum += values[i] / 10.0; printf("%d: %s\\n", i, names[i]); }
SELECT name, depth FROM harbours WHERE depth > 12 ORDER BY name;   {"role": "user", "content": "How deep is the bay?"}
Der Wärter schreibt jede Stunde in sein Buch. Größe, Übung, Fuß. Le gardien écrit à l'heure: déjà trois voiles, où est l'été?
El guardián escribe: ¿cuántos barcos hay? ¡Treinta y seis! O faroleiro não dorme. Strażnik pisze. Fyrvaktaren skriver varje timme.
Смотритель маяка пишет каждый час: ветер, высота воды и корабли. Ο φύλακας γράφει κάθε ώρα. Պահապանը գրում է. მცველი წერს.
灯台守は毎時、風と水の高さと船を書く。灯塔看守人每小时都写下风、水位和船只。등대지기는 매시간 바람과 물의 높이를 적는다。東京、北京、서울 2024年3月。
حارس المنارة يكتب كل ساعة ١٢٣. שומר המגדלור כותב בכל שעה. प्रहरी हर घंटे लिखता है। ผู้เฝ้าประภาคารเขียนทุกชั่วโมง
HTTPServer parseXMLFile snake_case_name kebab-case-name CONSTANT_VALUE x=1;y=2 a->b f(x) := x^2 [0,1] \\alpha \\frac{1}{2} 100% $5 #1
\t\tdeep\t  tabs\t and    spaces      everywhere        here
😀 ⚓ 🚢 👩‍👧 – — … “quoted” ‘single’ «guillemets» № ½ ² Ⅷ ﬁ ＡＢＣ１２
"""
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
LETTERS = """A-Z a-z 00B5 00C0-00D6 00D8-00F6 00F8-01BA 01BC-01BF 01C4-0293 0295-02AF 0370-0373 0376 0377 037B-037D 037F 0386
0388-038A 038C 038E-03A1 03A3-03F5 03F7-0481 048A-052F 0531-0556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B
1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4
1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134
2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E
AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF
1E900-1E943"""


def letters():
    """The list as the inside of a class: characters, not numbers, as the published file has them."""
    out = ""
    for part in LETTERS.split():
        ends = [end if len(end) == 1 else chr(int(end, 16)) for end in part.split("-")]
        out += "-".join(ends)
    return out


KIMI_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
KIMI_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([r"[\p{Han}]+", r"[^\r\n\p{L}\p{N}]?" + KIMI_UPPER + "*" + KIMI_LOWER + "+" + SUFFIX,
                 r"[^\r\n\p{L}\p{N}]?" + KIMI_UPPER + "+" + KIMI_LOWER + "*" + SUFFIX, r"\p{N}{1,3}",
                 r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"


def fnv(ids):
    value = 0xCBF29CE484222325
    for byte in b"".join(i.to_bytes(4, "little") for i in ids):
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return "%016x" % value


def added(content, i, **flags):
    return {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True, **flags}


def write(name, text):
    path = os.path.join(here, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        f.write(text)


# ---- The tokenizers ----------------------------------------------------------------------------------------------------------

def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def train(pre_tokenizer, size, specials=(), **model):
    """The model part of a tokenizer.json: BPE of `size` entries, special ones first, then the byte alphabet, then the probes."""
    t = Tokenizer.from_str(json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                                       "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": None,
                                       "model": {"type": "BPE", "vocab": {}, "merges": [], **model}}))
    alphabet = [] if model else sorted(pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(TEXT.splitlines(keepends=True), trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=list(specials), show_progress=False, min_frequency=1))
    trained = json.loads(t.to_str())["model"]
    return trained if model else with_probes(trained, len(alphabet) + len(specials))


def byte_alphabet():
    visible = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    table = {b: chr(b) for b in visible}
    for b in range(256):
        table.setdefault(b, chr(256 + len(table) - len(visible)))
    return table


def with_probes(model, first):
    """Merges of `a` with what follows and of what stands before `b`, ahead of all others: where a pattern cuts on either side of a
    character between these two, the ids show it."""
    table = byte_alphabet()
    others = [b for b in range(0x80) if not chr(b).isalpha()]
    probes = [["a", table[b]] for b in others + list(range(0xC2, 0xF5))] + [[table[b], "b"] for b in others + list(range(0x80, 0xC0))]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    pairs = ["".join(pair) for pair in probes]
    tokens = tokens[:first] + pairs + [token for token in tokens[first:] if token not in set(pairs)]
    return {**model, "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": probes + [m for m in model["merges"] if "".join(m) not in set(pairs)]}


def template(token, i):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": token, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [i], "tokens": [token]}}}


def save(name, config, **parts):
    root = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None, **parts}
    write(name + "/tokenizer.json", json.dumps(root, ensure_ascii=False, separators=(",", ":")).replace('"],["', '"],\n["') + "\n")
    write(name + "/tokenizer_config.json", json.dumps(config, ensure_ascii=False, indent=1) + "\n")
    return Tokenizer.from_str(json.dumps(root))


def deepseek():
    """Seven stages with the letters listed one by one; BOS by add_bos_token, which transformers turns into the template below."""
    pre = {"type": "Sequence", "pretokenizers": [
        split("[\r\n]"), split(r"\s?[" + letters() + "]+"), split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), split(r"\s+$"),
        split("[一-龥ࠀ-一가-퟿]+"), {"type": "Digits", "individual_digits": True}, BYTE_LEVEL]}
    model = train(pre, 1000)
    n = len(model["vocab"])
    tokens = [added(BOS, n, normalized=True), added(EOS, n + 1, normalized=True),
              added("<｜fim▁hole｜>", n + 2, special=False, normalized=True)]
    t = save("deepseek", {"add_bos_token": True, "add_eos_token": False, "bos_token": {"content": BOS}, "eos_token": {"content": EOS},
                          "pad_token": {"content": EOS}, "tokenizer_class": "LlamaTokenizerFast"},
             added_tokens=tokens, normalizer={"type": "Sequence", "normalizers": []}, pre_tokenizer=pre, post_processor=BYTE_LEVEL,
             decoder=BYTE_LEVEL, model=model)
    t.post_processor = processors.TemplateProcessing(single=BOS + " $A", pair=BOS + " $A $B", special_tokens=[(BOS, n)])
    return lambda text: t.encode(text).ids


def kimi():
    """Ranks as tiktoken reads them; 258 special tokens follow, most of them reserved under their number."""
    model = train({"type": "Sequence", "pretokenizers": [split(KIMI), BYTE_LEVEL]}, 1000)
    table = {c: b for b, c in byte_alphabet().items()}
    ranks = {bytes(table[c] for c in token): i for token, i in model["vocab"].items()}
    write("kimi/tiktoken.model", "".join("%s %d\n" % (base64.b64encode(token).decode(), rank)
                                         for token, rank in sorted(ranks.items(), key=lambda item: item[1])))
    n = len(ranks)
    names = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 10: "<|im_system|>",
             17: "<|im_middle|>", 254: "[PAD]", 255: "[UNK]"}
    special = {names.get(i, "<|reserved_token_%d|>" % (n + i)): n + i for i in range(258)}
    t = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)

    def parts(text):
        """The published tokenizer's cuts: 400,000 characters, then runs of at most 25,000 of space or of no space."""
        for at in range(0, len(text), 400000):
            part, start, run, space = text[at:at + 400000], 0, 0, False
            for i, c in enumerate(part):
                run = 1 if c.isspace() != space else run + 1
                if run > 25000:
                    yield part[start:i]
                    start, run = i, 1
                space = c.isspace()
            yield part[start:]

    return lambda text: [i for part in parts(text) for i in t.encode(part, allowed_special="all")]


def llama():
    """Mixtral's: a prefix and a replacement instead of a pre-tokenizer, unknown characters as bytes."""
    names = ["<unk>", "<s>", "</s>"]
    model = train({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}, 1200,
                  names + ["<0x%02X>" % b for b in range(256)], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    t = save("llama", {"add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>", "pad_token": None,
                       "unk_token": "<unk>", "legacy": True, "tokenizer_class": "LlamaTokenizer"},
             added_tokens=[added(name, i) for i, name in enumerate(names)],
             normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                             {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
             post_processor=template("<s>", 1),
             decoder={"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                       {"type": "ByteFallback"}, {"type": "Fuse"},
                                                       {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
             model=model)
    return lambda text: t.encode(text).ids


def granite():
    """Single digits before GPT-2's own pattern; special tokens at both ends of the vocabulary."""
    pre = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, dict(BYTE_LEVEL, use_regex=True)]}
    first = ["<|end_of_text|>", "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<reponame>"]
    model = train(pre, 1000, first)
    n = len(model["vocab"])
    tokens = [added(name, i) for i, name in enumerate(first)]
    tokens += [added(name, n + i) for i, name in enumerate(["<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>"])]
    t = save("granite", {"add_prefix_space": False, "add_bos_token": False, "bos_token": "<|end_of_text|>",
                         "eos_token": "<|end_of_text|>", "pad_token": "<|end_of_text|>", "tokenizer_class": "GPT2Tokenizer"},
             added_tokens=tokens, pre_tokenizer=pre, post_processor=dict(BYTE_LEVEL, use_regex=True),
             decoder=dict(BYTE_LEVEL, use_regex=True), model=model)
    return lambda text: t.encode(text).ids


def olmoe():
    """GPT-NeoX's: NFC, GPT-2's own pattern, and runs of spaces as ordinary added tokens."""
    pre = dict(BYTE_LEVEL, use_regex=True)
    first = ["|||IP_ADDRESS|||", "<|padding|>"]
    model = train(pre, 1000, first)
    n = len(model["vocab"])
    tokens = [added("|||IP_ADDRESS|||", 0, special=False, normalized=True), added("<|padding|>", 1)]
    tokens += [added(" " * (24 - i), n + i, special=False, normalized=True) for i in range(23)]
    tokens += [added("|||EMAIL_ADDRESS|||", n + 23, special=False, normalized=True), added("<|endoftext|>", n + 24)]
    t = save("olmoe", {"add_bos_token": False, "add_eos_token": False, "bos_token": None, "eos_token": "<|endoftext|>",
                       "pad_token": "<|padding|>", "tokenizer_class": "GPTNeoXTokenizer"},
             added_tokens=tokens, normalizer={"type": "NFC"}, pre_tokenizer=pre, post_processor=pre, decoder=pre, model=model)
    return lambda text: t.encode(text).ids


def make_encoders():
    return {f.__name__: f() for f in (deepseek, kimi, llama, granite, olmoe)}


# ---- Texts -------------------------------------------------------------------------------------------------------------------

SOURCES = [  # as in make_tokenizer.py
    ("math/gsm8k_train.jsonl", 10, ["question", "answer"]), ("code/new_codealpaca.json", 7, ["instruction", "input", "output"]),
    ("general/mmlu_stem_test.jsonl", 7, ["question"]), ("code/mbpp.jsonl", 4, ["text", "code"])]


def real_rows(shared):
    for name, step, fields in SOURCES:
        with open(os.path.join(shared, "data", name), encoding="utf-8") as f:
            rows = json.load(f) if name.endswith(".json") else [json.loads(line) for line in f if line.strip()]
        for row in rows[::step]:
            yield "\n".join(row[field] for field in fields if field in row)


TEXTS = TEXT.splitlines() + [
    "", " ", "  ", "   x   ", "\n", "\n\n \n", " \r\n\t\r\n x", "x \n", "x\n ", "tab\tx\t\ty \t", "a" * 60, " " * 60, "ab " * 20,
    "1234567890 12345 1 12 123 1234 ١٢٣٤ ²³ ½ Ⅷ 一二三", "3.14e-10 0xFF 1,000,000", "don't DON'T we'Ve ſ 'ſ I'LL x'S 'd",
    "HTTPServer camelCase ABCdef AbCd ǅungla ʰa aʰ漢字 漢a a漢 漢字ABC", "漢字、かな・カナ〇々〆。１２", "\u3001\u30fb\u3005", "中文abc中文123中文",
    "e\u0301e\u0300 cafe\u0301 \u0301x a\u0315\u0300\u05ae \u212b \u2126 \u0958", "각 각 한글", "\u180e \u200b\u2060 \u00a0x\u3000y\u2028z\u1680\u0085w",
    "<s>", "a<s>b </s> c", "<unk> <0x41> ▁a▁▁b", " <|endoftext|> <|padding|>x", "|||IP_ADDRESS||| and |||EMAIL_ADDRESS|||",
    "<|im_end|>x<|im_user|> [BOS][EOS] <|im_middle|", BOS + "x" + EOS + " <｜fim▁hole｜> y", "<|start_of_role|>user<|end_of_role|>hi<|end_of_text|>",
    "<fim_prefix>a<fim_suffix>b<fim_middle>", "[INST] hi [/INST]", "\x00\x01\x7f", "\U0010ffff\ue000\ufffe\U000e0041", "ʼn ŉ ſt ﬅ ß ẞ İ ı", "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪",
    "    def f(x):\n        return x\n", "a    b     c      d                            e", "x" + " " * 23 + "y" + " " * 24 + "z" + " " * 25]


def long_text():
    """Crosses the kimi cuts: runs of over 25,000 characters, and over 400,000 in all. The test builds the same."""
    return "a" * 60000 + " " * 30000 + "漢" * 26000 + "\n" + "tide " * 60000 + "x" * 10


def code_blocks(encoders):
    skip = {c for first, last, _ in EXCLUDED for c in range(first, last + 1)} | set(range(0xD800, 0xE000))
    yield "block\t" + "\t".join(encoders)
    for block in range(0, 0x110000, 4096):
        codes = [c for c in range(block, block + 4096) if c not in skip and (c < 0x40000 or c >= 0xE0000 or c % 97 == 0)]
        codes = [c for c in codes if c < 0xE1000 or c % 97 == 0]
        yield "\t".join(["%X" % block] + [fnv([i for c in codes for text in (chr(c), "a" + chr(c) + "b") for i in encode(text)])
                                          for encode in encoders.values()])


if __name__ == "__main__":
    encoders = make_encoders()
    rows = ["\t".join(encoders)] + ["\t".join(fnv(encode(text))[:8] for encode in encoders.values()) for text in real_rows(sys.argv[1])]
    write("real.tsv", "\n".join(rows) + "\n")
    texts = [{"text": text, **{name: encode(text) for name, encode in encoders.items()}} for text in TEXTS]
    texts.append({"text": None, **{name: fnv(encode(long_text())) for name, encode in encoders.items()}})
    write("texts.jsonl", "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in texts))
    write("excluded.tsv", "first\tlast\treason\n" + "".join("%X\t%X\t%s\n" % row for row in EXCLUDED))
    write("codes.tsv", "\n".join(code_blocks(encoders)) + "\n")
    print(len(rows) - 1, "real rows,", len(texts), "texts")
