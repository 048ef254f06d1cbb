# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/tokenizer/families/chats.json: conversations, chosen and random ones, with their text by each chat
template, the stretches that are answers, and for some the ids of a family's tokenizer. "header" tells whether a generation
prompt follows, and whether it asks for thinking; "refused" is the index of a turn that the template does not take.

usage: make_chats.py [RANDOM_CONVERSATIONS_A_TEMPLATE [FILE]]

Writes the small tokenizers anew, too, see make_tokenizer_families.py. Deterministic.
"""
import json
import os
import random
import sys

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from make_tokenizer_families import BOS, EOS, here, make_encoders

# The published forms of conversations, written down from their descriptions. {% generation %} marks answers.
ANSWER = "{% generation %}"
# The place of the last query; then assistant turns in what they say and what they thought before, which turns after the last
# query show if they thought or end the conversation. HEADER is what generation adds.
THINKING = ("{% set past = namespace(to=-1) %}{% for m in messages %}{% set tool = m.content[:15] == '<tool_response>' and m.content[-16:] == '</tool_response>' %}"
            "{% if m.role == 'user' and not tool %}{% set past.to = loop.index %}{% endif %}{% endfor %}"
            "{% if past.to < 0 %}{% set past.to = messages|length %}{% endif %}"
            "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}" + ANSWER
            + "{% set cuts = [m.content] if m.reasoning_content is string else m.content.split('</think>') %}"
            "{% set said = cuts[0] if cuts|length == 1 else cuts[-1].lstrip('\n') %}"
            "{% set thought = m.reasoning_content if m.reasoning_content is string else '' %}"
            "{% if cuts|length > 1 %}{% set thought = cuts[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}{% endif %}"
            "{% if loop.index0 >= past.to and (thought or loop.last) %}"
            "{{ '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + said.lstrip('\n') }}{% else %}{{ said }}{% endif %}{{ '<|im_end|>' }}"
            "{% endgeneration %}{{ '\n' }}{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' + HEADER }}{% endif %}")
JINJA = {
    "chatml": ("{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}" + ANSWER + "{{ m.content }}{{ '<|im_end|>' }}"
               "{% endgeneration %}{{ '\n' }}{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"),
    "moonlight": ("{% if messages[0].role != 'system' %}<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>{% endif %}"
                  "{% for m in messages %}{{ '<|im_' + m.role + '|>' + m.role + '<|im_middle|>' }}{% if m.role == 'assistant' %}" + ANSWER
                  + "{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
                  "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"),
    "deepseek": ("{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ 'User: ' + m.content + '\n\n' }}{% elif m.role == 'assistant' %}"
                 "{{ 'Assistant:' }}" + ANSWER + "{{ ' ' + m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content + '\n\n' }}{% endif %}"
                 "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"),
    "mistral": ("{{ bos_token }}{% set ns = namespace(system='', due='user') %}{% for m in messages %}{% if m.role == 'system' and loop.first %}"
                "{% set ns.system = m.content + '\n\n' %}{% elif m.role != ns.due %}{{ raise_exception(loop.index0|string) }}"
                "{% elif m.role == 'user' %}{{ ' [INST] ' + ns.system + m.content + ' [/INST]' }}{% set ns.system = '' %}{% set ns.due = 'assistant' %}"
                "{% else %}" + ANSWER + "{{ ' ' + m.content }}{{ eos_token }}{% endgeneration %}{% set ns.due = 'user' %}{% endif %}{% endfor %}"),
    "granite": ("{% for m in messages %}{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' }}{% if m.role == 'assistant' %}" + ANSWER
                + "{{ m.content }}<|end_of_text|>{% endgeneration %}{% else %}{{ m.content }}<|end_of_text|>{% endif %}{{ '\n' }}{% endfor %}"
                "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"),
    "tulu": ("{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>\n' }}{% if m.role == 'assistant' %}" + ANSWER
             + "{{ m.content }}{{ eos_token }}{% endgeneration %}{% if not loop.last %}{{ '\n' }}{% endif %}{% else %}{{ m.content + '\n' }}{% endif %}"
             "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"),
    "qwen3": THINKING.replace("HEADER", r"('' if enable_thinking else '<think>\n\n</think>\n\n')"),
    "qwen3-thinking": THINKING.replace("HEADER", r"'<think>\n'"),
}
# Template: the family whose tokenizer it goes with, BOS and EOS as the template's text has them.
CHATS = {"moonlight": ("kimi", "", ""), "deepseek": ("deepseek", BOS, EOS), "mistral": ("llama", "<s>", "</s>"),
         "granite": ("granite", "", ""), "tulu": ("olmoe", "<|endoftext|>", "<|endoftext|>"), "chatml": ("", "", ""),
         "qwen3": ("", "", ""), "qwen3-thinking": ("", "", "")}
TALKS = [[("user", "How deep is the bay?")], [("user", "How deep?"), ("assistant", "12 metres.")],
         [("system", "Answer in one word."), ("user", "Deep?"), ("assistant", "Yes")],
         [("user", " one "), ("assistant", " 1\n"), ("user", "two\n\n"), ("assistant", "")],
         [("system", ""), ("user", "漢字 é 😀"), ("assistant", "a"), ("user", "b"), ("assistant", "c  d")]]
FIELDS = ("role", "content", "reasoning_content")  # of a turn
PIECES = ["<think>", "</think>", "\n", "\n\n", "<think>\n", "\n</think>\n\n", "<tool_response>", "</tool_response>", "tide", " ", "é漢"]
ODD = [[("system", "alone")], [("system", "s"), ("assistant", "a")], [("user", "u"), ("assistant", "a"), ("assistant", "b")],
       [("user", "u"), ("user", "v")], [("assistant", "a"), ("user", "u")], [("user", "u"), ("system", "s")],
       [("system", "s"), ("system", "t"), ("user", "u")], [("user", "u"), ("assistant", "a"), ("system", "s"), ("user", "v")]]

THOUGHTS = [[("user", "u"), ("assistant", "\n\nx")], [("user", "u"), ("assistant", "\n<think>a</think>\n\nb", "c\n")],
            [("user", "u"), ("assistant", "\nt", "why"), ("user", "<tool_response>r</tool_response>"), ("assistant", "\nf"), ("assistant", "g")],
            [("assistant", "<think>a</think>\nb")], [("user", "u"), ("assistant", "a\n</think>b</think>\nc<think>")],
            [("user", "u"), ("assistant", "<think>\na</think>b"), ("user", "v"), ("assistant", "c", "\n"), ("assistant", "\n\n", "")]]


def random_text(draw):
    return "".join(draw.choice(PIECES) for _ in range(draw.choice([0, 1, 1, 2, 3, 5, 7])))


def random_turn(draw, role):
    text = random_text(draw)
    if role == "user" and draw.random() < 0.2:
        return role, "<tool_response>" + text + "</tool_response>"
    if role != "assistant" or draw.random() < 0.3:
        return role, text
    form = draw.randrange(3)
    thought = draw.choice(["", "\n", "so\n", "\nlow\n\ntide"])
    return (role, "<think>" + thought + "</think>" + text) if form == 0 else (role, text, thought) if form == 1 else (role, text, None)


def random_talk(draw):
    """Mostly in turn, sometimes any role anywhere."""
    count = draw.randrange(1, 7)
    if draw.random() < 0.4:
        return [random_turn(draw, draw.choice(["system", "user", "assistant"])) for _ in range(count)]
    roles = ["system"] * (draw.random() < 0.3) + ["user", "assistant"] * 3
    return [random_turn(draw, role) for role in roles[:count]]


def render(name, talk, header):
    """The row of a conversation; header: None, or whether the generation prompt asks for thinking."""
    family, bos, eos = CHATS[name]
    row = {"template": name, "family": family, "turns": talk}
    if header is not None:
        row["header"] = header
    if name == "mistral" and [turn[0] for turn in talk] == ["system"]:
        return {**row, "refused": 0}  # The template loses the system turn without a word: refused all the same.
    try:
        texts, spans = render_jinja_template([[dict(zip(FIELDS, turn)) for turn in talk]], chat_template=JINJA[name],
                                             return_assistant_tokens_mask=True, add_generation_prompt=header is not None,
                                             bos_token=bos, eos_token=eos, enable_thinking=header is not False)
    except TemplateError as error:
        return {**row, "refused": int(str(error))}
    return {**row, "text": texts[0], "answers": spans[0]}


def chats(encoders, random_count):
    for name, (family, _, _) in CHATS.items():
        for talk in TALKS:
            row = render(name, talk, True if talk[-1][0] == "user" else None)
            if family:  # BOS stands once, whether the template or the tokenizer writes it.
                ids = encoders[family](row["text"])
                row["ids"] = ids[1:] if len(ids) > 1 and ids[0] == ids[1] else ids
            yield row
        if name == "mistral":
            yield from (render(name, talk, None) for talk in ODD)
        if name.startswith("qwen3"):
            yield from (render(name, talk, None) for talk in THOUGHTS)
        draw = random.Random(name)
        thinks = name.startswith("qwen3")
        for _ in range(random_count * (6 if name == "qwen3" else 1)):
            talk = random_talk(draw)
            if not thinks:
                talk = [turn[:2] for turn in talk]
            yield render(name, talk, draw.choice([None, True, False] if thinks else [None, True]))


if __name__ == "__main__":
    path = sys.argv[2] if len(sys.argv) > 2 else os.path.join(here, "chats.json")
    rows = list(chats(make_encoders(), int(sys.argv[1]) if len(sys.argv) > 1 else 4))
    with open(path, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")
    print(len(rows), "conversations,", sum("refused" in row for row in rows), "refused")
