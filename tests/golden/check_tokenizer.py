# SPDX-License-Identifier: Apache-2.0
"""Compares Kedge's tokenizer with the Python library on every code point, and on random patterns.

usage: check_tokenizer.py LIBKEDGE.so PATH [KIND]        PATH as in kedge_tokenizer_open
       check_tokenizer.py LIBKEDGE.so patterns [SEED]

The first form saves PATH into a temporary folder with Kedge, loads the tokenizer.json there with `tokenizers`, and encodes every
code point alone, between letters, and between a space and a digit. Code points that are unassigned in Python's Unicode are
counted apart: the libraries' Unicode versions differ. The second form gives both the same random patterns in a Split stage; a
pattern that Kedge refuses is not compared.
"""
import ctypes as C
import json
import os
import random
import sys
import tempfile
import unicodedata

from tokenizers import Tokenizer

lib = C.CDLL(sys.argv[1])
lib.kedge_message.restype = C.c_char_p
lib.kedge_free.argtypes = [C.c_void_p]
lib.kedge_tokenizer_encode.argtypes = [C.c_void_p, C.c_char_p, C.c_size_t, C.c_uint, C.c_void_p, C.c_void_p]


class Kedge:
    def __init__(self, path, kind=None):
        self.handle = C.c_void_p()
        self.check(lib.kedge_tokenizer_open(path.encode(), kind and kind.encode(), C.byref(self.handle)))

    @staticmethod
    def check(status):
        if status:
            raise RuntimeError(lib.kedge_message().decode())

    def save(self, folder):
        self.check(lib.kedge_tokenizer_save(self.handle, folder.encode()))

    def encode(self, text):
        ids, count = C.POINTER(C.c_int32)(), C.c_size_t()
        data = text.encode()
        self.check(lib.kedge_tokenizer_encode(self.handle, data, len(data), 1, C.byref(ids), C.byref(count)))
        result = ids[:count.value]
        lib.kedge_free(ids)
        return result


def code_points(path, kind):
    with tempfile.TemporaryDirectory() as folder:
        Kedge(path, kind).save(folder)
        ours, theirs = Kedge(folder), Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    known, newer = [], 0
    codes = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for at in range(0, len(codes), 2000):
        part = [(c, text % chr(c)) for c in codes[at:at + 2000] for text in ("%s", "a%sb", " %s1")]
        for (code, text), want in zip(part, theirs.encode_batch([text for _, text in part], add_special_tokens=False)):
            if ours.encode(text) == want.ids:
                continue
            if unicodedata.category(chr(code)) == "Cn":
                newer += 1
            else:
                known.append("U+%04X" % code)
    print("texts that differ: %d of assigned code points, %d of newer ones" % (len(known), newer), *known[:50])
    return bool(known)


def patterns(seed):
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "tokenizer", "tiny", "tokenizer.json"), encoding="utf-8") as f:
        root = json.load(f)
    root["normalizer"] = None
    pieces = ["a", r"\s", r"\S+", r"\p{L}", r"\P{N}", "[", "]", "^", "&&", "(", ")", "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?i:", "|", "*",
              "+", "?", "{1,3}", "-", "\\", "$", r"\r", ".", "é", r"[^\s]", r"[\p{L}&&[^a]]", r"\d", " ?", r"\w", r"\W", r"\x{301}",
              r"\p{Han}", "{2}", r"[\w-]", r"[\]a-c]", r"\h", r"\D", "K", "s", "ſ", "??", "+?", "*?", "++", "\n", r"\A", r"\z", r"\Z",
              "(?>", ",", r"[^\S\n]", r"\-", "[^a-z&&b]", "[a[bc]]", "ß", "(?i)"]
    texts = ["aa café 12\r\n  漢字 -a^]x", "K s ſ Kk S\n\nß SS ss\n", "", "a\n", "\n a", "ab abc éÉ_‿x\u3000y  z ٣Ⅷ²", "  \t \n \u2028a b"]
    choose = random.Random(seed)
    ran = differ = 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokenizer.json")
        for _ in range(10000):
            pattern = "".join(choose.choice(pieces) for _ in range(choose.randint(1, 7)))
            root["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": pattern}
            with open(path, "w", encoding="utf-8") as f:
                json.dump(root, f)
            try:
                ours = Kedge(path)
            except RuntimeError:
                continue
            try:
                theirs = Tokenizer.from_file(path)
            except Exception:
                continue
            ran += 1
            for text in texts:
                if ours.encode(text) != theirs.encode(text).ids:
                    print("differs:", repr(pattern), repr(text))
                    differ += 1
                    break
    print("%d patterns compared, %d differ" % (ran, differ))
    return bool(differ)


if sys.argv[2] == "patterns":
    sys.exit(patterns(int(sys.argv[3]) if len(sys.argv) > 3 else 1))
sys.exit(code_points(sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None))
