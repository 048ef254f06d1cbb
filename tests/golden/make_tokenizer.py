# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/tokenizer/: ids by the Python libraries `tokenizers` and `tiktoken`, and small tokenizers of our own.

usage: make_tokenizer.py SHARED_FOLDER

tiny/                 a model directory's tokenizer: byte-level BPE of 512 ids, trained on the text below
stages.json           pipelines around small models: one patch of tokenizer.json a case, with texts, ids and decoded texts
synthetic.jsonl       texts of our own and the hashes of their ids, a column a tokenizer (see `columns`)
real.tsv              hashes of the ids of rows of the shared folder's files; the rows are those of `sources`
A hash is 64-bit FNV-1a over the ids as little-endian int32. Deterministic.
"""
import base64
import json
import os
import sys

import tiktoken
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer")
shared = sys.argv[1]
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
QWEN_PRE = {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": QWEN}, "behavior": "Isolated", "invert": False}, BYTE_LEVEL]}
QWEN_ADDED = (["<|%s|>" % n for n in ("endoftext im_start im_end object_ref_start object_ref_end box_start box_end quad_start "
              "quad_end vision_start vision_end vision_pad image_pad video_pad").split()]
              + "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
                "<tool_response> </tool_response> <think> </think>".split())

TEXT = """A ship at anchor still moves with the tide. The chain is long, the water is deep, and the wind turns her bow one way
and then the other; yet in the morning she lies where she lay in the evening. What holds her is light compared with her own
weight. When there are 12 ships in the bay and 3 of them leave, 9 ships are left: 12 - 3 = 9. If each of the 9 ships has 4
boats, there are 9 * 4 = 36 boats. The answer is 36.
The keeper of the light writes in his book every hour: the wind, the height of the water, the ships that he sees. "Two sails
to the north," he writes, "and one to the east." He doesn't sleep until the sun is up, and he's never late.
def count(ships, boats):
    total = 0
    for ship in ships:
        total += boats[ship]
    return total  # the number of boats
How many boats are there? Let us think step by step. First we count the ships, then we multiply by the number of boats that
each ship has, and then we add what is left over. The number of boats is 36 and the number of ships is 9.
Das Schiff liegt vor Anker. Le navire est à l'ancre. El barco está anclado. Корабль стоит на якоре. 船は停泊している。
{"role": "user", "content": "How many ships are in the bay?"}
""".replace("\nand", " and").replace("\nweight", " weight").replace("\nto the", " to the").replace("\neach", " each").replace(
    "\nboats,", " boats,")


def fnv(ids):
    value = 0xCBF29CE484222325
    for i in ids:
        for byte in i.to_bytes(4, "little"):
            value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return "%016x" % value


def added(content, i, **flags):
    return {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True, **flags}


def tokenizer_json(model, added_tokens=(), normalizer=None, pre_tokenizer=None, post_processor=None, decoder=None):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added_tokens), "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": decoder, "model": model}


def load(root):
    return Tokenizer.from_str(json.dumps(root))


# ---- Small tokenizers ----------------------------------------------------------------------------------------------------

def train_tiny():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.train_from_iterator(TEXT.splitlines(keepends=True), trainers.BpeTrainer(
        vocab_size=507, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False, min_frequency=1))
    model = json.loads(t.to_str())["model"]
    assert len(model["vocab"]) == 507
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    return tokenizer_json(model, [added(n, 507 + i, special=i < 3) for i, n in enumerate(names)], {"type": "NFC"}, QWEN_PRE,
                          BYTE_LEVEL, BYTE_LEVEL)


def train_metaspace():
    alphabet = ["<0x%02X>" % b for b in range(256)]
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.train_from_iterator(TEXT.splitlines(), trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>", "<s>", "</s>"] + alphabet,
                                                                show_progress=False, min_frequency=2))
    return json.loads(t.to_str())["model"]


ROWS = ["", " ", "  ", "The ships", " The  ships in the bay.", "Hello, world! 12345 ½ ٣", "a\nb\r\n\tc  \n\n d", "it's IT'S don'T ſ 'ſ",
        "café cafe\u0301 ＡＢＣ ﬁ İI", "船は停泊している。한국어 русский", "😀 👩‍👩‍👧 ❤️", "x<|endoftext|>y", " <s> a<s>b  </s> ", "<mark>x <mark> y<mark>",
        "word_word-word", "▁a▁ b", "1,234.5e-6", "a   b    c", "\u00a0x\u3000y\u2028z\u1680", "tab\there", "ﬀ\u0958\u2126"]


def stage_cases(tiny, metaspace):
    s = lambda pattern, behavior, invert=False, kind="Regex": {
        "type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}
    seq = lambda *stages: {"type": "Sequence", "pretokenizers": list(stages)}
    cases = []
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            cases.append(("split %s %s" % (behavior, invert), "tiny", {"pre_tokenizer": seq(s(r"\s|[aeiou]", behavior, invert), BYTE_LEVEL)}))
            cases.append(("literal %s %s" % (behavior, invert), "tiny", {"pre_tokenizer": seq(s(" ", behavior, invert, "String"), BYTE_LEVEL)}))
    patterns = [r"\s+$|[\r\n]|\s?[A-Za-zµÀ-ÖØ-ö]+|\s?[!-/:-~！-／：-～‘-‟　-。]+|[一-龥ࠀ-一가-퟿]+", r"^\s|(?<=a)b|(?<!a)\w{2,3}?|\d++|\W",
                r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|[\p{Han}]+|\p{N}{1,3}",
                r"(?:|b)x*", r"\h+|[^\S\r\n]+|\P{L}|[\]\[\\^-]"]
    for i, pattern in enumerate(patterns):
        cases.append(("pattern %d" % i, "tiny", {"pre_tokenizer": seq(s(pattern, "Isolated"), BYTE_LEVEL)}))
    for prefix in (False, True):
        for regex in (False, True):
            cases.append(("byte level %s %s" % (prefix, regex), "tiny", {"pre_tokenizer": dict(
                BYTE_LEVEL, add_prefix_space=prefix, use_regex=regex)}))
    for kind in ("Whitespace", "WhitespaceSplit"):
        cases.append((kind, "tiny", {"pre_tokenizer": seq({"type": kind}, BYTE_LEVEL)}))
    for single in (False, True):
        cases.append(("digits %s" % single, "tiny", {"pre_tokenizer": seq({"type": "Digits", "individual_digits": single}, dict(
            BYTE_LEVEL, use_regex=True))}))
    cases.append(("punctuation", "tiny", {"pre_tokenizer": seq({"type": "Punctuation", "behavior": "Contiguous"}, BYTE_LEVEL)}))
    cases.append(("delimiter", "tiny", {"pre_tokenizer": seq({"type": "CharDelimiterSplit", "delimiter": "-"}, BYTE_LEVEL)}))
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        cases.append((form, "tiny", {"normalizer": {"type": "Sequence", "normalizers": [{"type": form}]}}))
    cases.append(("replace", "tiny", {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}, {"type": "Prepend", "prepend": "x"}]}}))
    cases.append(("whole pieces first", "tiny", {"model": {"ignore_merges": True, "merges": []}}))
    cases.append(("no stages", "tiny", {"normalizer": None, "pre_tokenizer": None, "decoder": None, "post_processor": None}))
    cases.append(("added tokens", "tiny", {"normalizer": {"type": "Lowercase"}, "added_tokens": [
        added("<mark>", 507, lstrip=True), added("<s>", 508, rstrip=True), added("</s>", 509, lstrip=True, rstrip=True),
        added("word", 510, single_word=True, special=False), added("SHIPS", 511, normalized=True, special=False),
        added("<ma", 512), added("  ", 513, special=False, normalized=True), added("the", tiny["model"]["vocab"]["the"], special=False)]}))
    cases.append(("template", "tiny", {"post_processor": {"type": "Sequence", "processors": [BYTE_LEVEL, {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "B", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": "E", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"B": {"id": "B", "ids": [507, 508], "tokens": ["<|endoftext|>", "<|im_start|>"]},
                           "E": {"id": "E", "ids": [509], "tokens": ["<|im_end|>"]}}}]}}))
    meta = lambda **k: {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True, **k}
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            stage = meta(prepend_scheme=scheme, split=split)
            cases.append(("metaspace %s %s" % (scheme, split), "metaspace", {"pre_tokenizer": stage, "decoder": stage}))
    for stage in ({"type": "WhitespaceSplit"}, s(r"^\S", "Removed")):
        cases.append(("metaspace after %s" % stage["type"], "metaspace", {
            "pre_tokenizer": seq(stage, meta(prepend_scheme="first")), "decoder": {"type": "Sequence", "decoders": []}}))
    size = 1 + max(metaspace["vocab"].values())
    cases.append(("added white space", "metaspace", {"added_tokens": [
        added(" ", size, special=False, lstrip=True, rstrip=True), added("b", metaspace["vocab"]["b"], special=False, rstrip=True)]}))
    marks = [added(n, i) for i, n in enumerate(["<unk>", "<s>", "</s>"])]
    llama = {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}, "added_tokens": marks}
    for fallback in (True, False):
        for fuse in (True, False):
            cases.append(("sentencepiece %s %s" % (fallback, fuse), "metaspace", dict(llama, model={
                "byte_fallback": fallback, "fuse_unk": fuse})))
    bases = {"tiny": tiny, "metaspace": tokenizer_json(metaspace)}
    out = []
    for name, base, patch in cases:
        root = json.loads(json.dumps(bases[base]))
        for key, value in patch.items():
            root[key] = {**root["model"], **value} if key == "model" else value
        t = load(root)
        plain = load(root)
        plain.encode_special_tokens = True
        rows = []
        for text in ROWS:
            ids = t.encode(text).ids
            rows.append({"text": text, "ids": ids, "plain": plain.encode(text, add_special_tokens=False).ids,
                         "decoded": t.decode(ids, skip_special_tokens=False)})
        out.append({"name": name, "base": base, "patch": patch, "rows": rows})
    return {"bases": {"metaspace": bases["metaspace"]}, "cases": out}


# ---- Texts of our own ------------------------------------------------------------------------------------------------------

def synthetic():
    rows = ROWS + [
        "The quick ship's anchor; we'll see, they've, I'M, you'd, THEY'RE, 'tis", "'s't're've'm'll'd 'S'T'RE 'ſ ’s", "don\u2019t",
        "naïve façade coöperate Ångström Ω Ω K K Å", "e\u0301e\u0300o\u0308 \u1e9b\u0323 \u0041\u030a \u212b \u00c5",
        "\u0301leading mark", "a\u0315\u0300\u05ae\u0062 order", "각 \u1100\u1161\u11a8 \u1112\u1161\u11ab 한글 조합", "\uac00\u11a8\u11a9",
        "漢字かな交じり文、カタカナ。ﾊﾝｶｸ ｶﾞ", "中文，没有空格。１２３ 一二三", "豈\uf900更\ufa6a\U0002f800", "〇々〆ヶ・、ー", "𠀀𪚥𫝀",
        "السلام عليكم ١٢٣، مرحبا", "שלום עולם 123 \u05d1\u05bc\u05b0", "\u200fRTL\u200e marks \u202bx\u202c", "हिन्दी में क़ लिखा \u0915\u093c", "ไทยไม่มีเว้นวรรค",
        "Zażółć gęślą jaźń", "ŐŰőű ĳ Ǆǅǆ ŉ ß ẞ", "ΑΣ Σίσυφος ς ᾼ ᾳ", "İstanbul ısı", "ՀԱՅ հայ ქართული ᏣᎳᎩ", "𝒜𝓁𝓅𝒽𝒶 𝟘𝟙𝟚 ⅷ Ⅷ ① ㊙ ²³¹",
        "👍🏽👨‍👩‍👧‍👦🏳️‍🌈🇩🇪🇫🇷 #️⃣ ☺︎☺️", "🫠🫡 new ones", "\ufe0f\u200d\u200b\u2060\ufeff zero", "math: ∑∫√≠≤ ∀x∈ℝ → ⟨a|b⟩", "€100 £5 ¥¥ ₹ 50%‰",
        "“quotes” ‘single’ «guillemets» —dash–dash…", " ", "  ", "   ", "    x", "x    ", "x    y", "\t\t\tx", " \t \n \t", "\n", "\n\n\n", "\r\n\r\n", "\r",
        "a\r\nb\rc\nd", "line one \n  line two\n\n\n   line three   \n", "\x0b\x0c\x1c\x1d\x1e\x1f\x85 separators", "\u00a0\u00a0nbsp \u2003em\u3000wide\u180eold",
        "\x00null\x01\x02\x7f\x80\x9f", " \x00 ", "a" * 300, "ab" * 200, " " * 300, "\n" * 257, " \n" * 100, "x" + " " * 100 + "y", "!" * 200, "=" * 79 + "\n",
        "1" * 100, "3.14159265358979323846", "1,000,000 1 000 000 1_000", "0xDEADBEEF 1e-10 -5 +7", "2+2=4;3*3=9", "v1.2.3-rc.4+build.5",
        "def f(x):\n    return {k: v for k, v in x.items() if v is not None}\n", "for (int i = 0; i < n; ++i) { a[i] += b[i]; }  // sum\n",
        "\tif (x) {\r\n\t\ty();\r\n\t}\r\n", "SELECT * FROM t WHERE a <> 'it''s';", "<html><body class=\"x\">&amp;</body></html>", "https://example.org/a?b=c&d=%20e#f",
        "C:\\path\\to\\file.txt ~/.config/x", "{\"a\": [1, 2, {\"b\": null}], \"c\": \"\\u00e9\"}", "\\frac{a}{b} $x^2$ \\begin{align}", "snake_case camelCase PascalCase SCREAMING kebab-case",
        "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<|im_start|<|im_start|>",
        "<think>\nhm\n</think>\n\nyes", "<tool_call>{}</tool_call>", "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", "<|padding|> x", "<|im_end|", "<|endoftext|", "|>", "<|ENDOFTEXT|>",
        "x  <|im_end|>  y", "cafe\u0301<|im_end|>\u0301", "<think\u0301>", " <think> ", "  " * 12 + "deep", "  " * 13 + " deeper", "\u0301 " * 20, "\ud7ff\ue000\uffff\U0010ffff",
        "ends with space ", "ends with newline\n", "ends with\u0301", "Ġ ġ Ċ ĉ Ā ń", "▁ ▁▁", "<0x0A> <0xFF>", "###Instruction: ###Response:"]
    state = 12345
    pool = [chr(c) for c in list(range(0x20, 0x7f)) + [10, 13, 9, 0xe9, 0x301, 0x308, 0x4e2d, 0xac00, 0x1100, 0x1161, 0x11a8, 0x5d0, 0x627, 0x1f600,
                                                      0x200d, 0xfe0f, 0xa0, 0x3000, 0x2028, 0x85, 0x1f3fd, 0x660, 0x2160, 0xb2, 0x17f, 0x212a]]
    for _ in range(60):
        text = ""
        for _ in range(40):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            text += pool[(state >> 33) % len(pool)]
        rows.append(text)
    return list(dict.fromkeys(rows))


# ---- Full-size tokenizers ----------------------------------------------------------------------------------------------------

def read_ranks(name):
    with open(os.path.join(shared, "data", "tokenizers", name + ".tiktoken"), "rb") as f:
        return {base64.b64decode(a): int(b) for a, b in (line.split() for line in f)}


def from_ranks(ranks, **pipeline):
    """The tokenizers library's form of ranks: every way to cut a token into two is a merge, in the order of the tokens."""
    table = dict(zip(range(256), "".join(sorted(pre_tokenizers.ByteLevel.alphabet()))))
    visible = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    table = {b: chr(b) for b in visible}
    for b in range(256):
        table.setdefault(b, chr(256 + len(table) - len(visible)))
    spell = lambda token: "".join(table[b] for b in token)
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [[spell(a), spell(b)] for a, b in sorted(cuts, key=lambda c: (ranks[c[0]], ranks[c[1]]))]
    return load(tokenizer_json({"type": "BPE", "vocab": {spell(t): r for t, r in ranks.items()}, "merges": merges}, **pipeline))


def columns():
    """Name -> function from text to ids. `_plain`: special tokens in the text are ordinary text."""
    out = {}
    ranks = {name: read_ranks(name) for name in ("qwen", "gpt2")}
    specials = {"qwen": QWEN_ADDED, "gpt2": ["<|endoftext|>"]}
    for name, pattern in (("qwen", QWEN), ("gpt2", GPT2)):
        first = len(ranks[name])
        bare = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks[name],
                                 special_tokens={s: first + i for i, s in enumerate(specials[name])})
        out[name + "_bare_plain"] = bare.encode_ordinary
        out[name + "_bare"] = lambda text, e=bare: e.encode(text, allowed_special="all")
    with open(os.path.join(shared, "data", "tokenizers", "gpt_neox_20B_tokenizer.json")) as f:
        neox = f.read()
    qwen = lambda: from_ranks(ranks["qwen"], added_tokens=[added(s, 151643 + i, special=i < 14) for i, s in enumerate(QWEN_ADDED)],
                              normalizer={"type": "NFC"}, pre_tokenizer=QWEN_PRE)
    for name, make in (("qwen", qwen), ("neox", lambda: Tokenizer.from_str(neox))):
        t, plain = make(), make()
        plain.encode_special_tokens = True
        out[name] = lambda text, t=t: t.encode(text).ids
        out[name + "_plain"] = lambda text, t=plain: t.encode(text).ids
    return out


sources = [  # file, every how many rows, fields joined by a newline (absent ones left out)
    ("math/gsm8k_train.jsonl", 10, ["question", "answer"]), ("code/new_codealpaca.json", 7, ["instruction", "input", "output"]),
    ("general/mmlu_stem_test.jsonl", 7, ["question"]), ("code/mbpp.jsonl", 4, ["text", "code"])]


def real_rows():
    for name, step, fields in sources:
        with open(os.path.join(shared, "data", name), encoding="utf-8") as f:
            rows = json.load(f) if name.endswith(".json") else [json.loads(line) for line in f if line.strip()]
        for row in rows[::step]:
            yield "\n".join(row[field] for field in fields if field in row)


def write(name, text):
    path = os.path.join(here, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        f.write(text)


tiny = train_tiny()
write("tiny/tokenizer.json", json.dumps(tiny, ensure_ascii=False, indent=0) + "\n")
write("tiny/tokenizer_config.json", json.dumps({
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
    "clean_up_tokenization_spaces": False}, indent=2) + "\n")
write("stages.json", json.dumps(stage_cases(tiny, train_metaspace()), separators=(",", ":")).replace("},{\"name\"", "},\n{\"name\"") + "\n")
tokenizers = {"tiny": lambda text, t=load(tiny): t.encode(text).ids, **columns()}
write("synthetic.jsonl", "".join(json.dumps({"text": text, **{name: fnv(encode(text)) for name, encode in tokenizers.items()}}) + "\n"
                                 for text in synthetic()))
names = ["qwen_bare_plain", "gpt2_bare_plain", "qwen", "neox"]
lines = ["\t".join(names)] + ["\t".join(fnv(tokenizers[name](text)) for name in names) for text in real_rows()]
write("real.tsv", "\n".join(lines) + "\n")
print(len(lines) - 1, "real rows,", len(synthetic()), "synthetic rows")
