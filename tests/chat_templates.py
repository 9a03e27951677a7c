"""Tokenizers and chat templates for tests, written here in the manner of the families that are in use."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

Turns = list[tuple[str, str]]

TURN = "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
OPEN = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
CHATML = "{% for m in messages %}" + TURN + "{% endfor %}" + OPEN

LLAMA = """{{- bos_token }}
{%- for m in messages %}
    {{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

MISTRAL = """{%- set ns = namespace(system='') %}
{{- bos_token }}
{%- for m in messages %}
    {%- if m['role'] == 'system' %}{%- set ns.system = m['content'] + '\\n\\n' %}
    {%- elif m['role'] == 'user' %}
        {{- '[INST] ' + (ns.system if loop.index0 < 2 else '') + m['content'] + ' [/INST]' }}
    {%- else %}{{- ' ' + m['content'] + eos_token }}
    {%- endif %}
{%- endfor %}"""

GEMMA = """{{- bos_token }}
{%- for m in messages %}
    {%- if m['role'] == 'system' %}{{- raise_exception('there is no system turn') }}{%- endif %}
    {%- set role = 'model' if m['role'] == 'assistant' else m['role'] %}
    {{- '<start_of_turn>' + role + '\\n' + m['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""

PHI = """{%- for m in messages %}{{- '<|' + m['role'] + '|>\\n' + m['content'] + '<|end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- else %}{{- eos_token }}{%- endif %}"""

TOOLS = (
    """{%- if tools %}{{- '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' }}{%- endif %}
{%- for m in messages %}
    {{- '<|im_start|>' + m['role'] + '\\n' + m['content'] }}
    {%- for call in m['tool_calls'] or [] %}
        {{- '<tool_call>' + call['function'] | tojson + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
"""
    + OPEN
)

# Thinking is kept in the last answer only; an empty thought is put before an answer that has none.
THINKING = """{%- for m in messages %}
    {%- set said = m['content'].split('</think>')[-1].lstrip('\\n') %}
    {%- set thought = '<think>' + m['content'].split('</think>')[0].split('<think>')[-1] + '</think>\\n\\n' %}
    {%- set kept = thought if loop.last and '</think>' in m['content'] else '' %}
    {{- '<|im_start|>' + m['role'] + '\\n' + kept + said + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{%- endif %}"""


def pieces() -> list[str]:
    words = "the number of a row follows what is it and then hello world be brief yes no assistant user system"
    lines = [f"what follows the number {index} in the row?\nit is {index + 1}\n\n" for index in range(200)]
    return [*lines, words, "[INST] hello [/INST] yes", "  two  spaces", "\n\nlines\n\n", "a.b, c: d; (e)"]


@cache
def byte_level(
    special: tuple[str, ...],
    rstrip: bool = False,
    lstrip: bool = False,
    nfc: bool = False,
    prefix: bool = False,
    lines: bool = False,
) -> Tokenizer:
    """Byte-level BPE as in GPT-2: no space before a text, unless `prefix`; with `lines`, line ends are kept together as
    in Llama-3 and Qwen."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=not lines)
    if lines:
        words = pre_tokenizers.Split(Regex(r"\s*[\r\n]+|\s+(?!\S)| ?\w+| ?[^\s\w]+|\s"), "isolated")
        raw.pre_tokenizer = pre_tokenizers.Sequence([words, raw.pre_tokenizer])
    if lines or prefix:
        raw.post_processor = processors.ByteLevel(trim_offsets=True)
    raw.decoder = decoders.ByteLevel()
    if nfc:
        raw.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    raw.train_from_iterator(pieces(), trainer)
    raw.add_special_tokens([AddedToken(text, rstrip=rstrip, normalized=False, special=True) for text in special])
    return raw


@cache
def metaspace(special: tuple[str, ...], scheme: str) -> Tokenizer:
    """BPE in the manner of sentencepiece: spaces are letters, bytes stand in for what is not known."""
    raw = Tokenizer(models.BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>"], show_progress=False, limit_alphabet=60, max_token_length=9
    )
    raw.train_from_iterator(pieces(), trainer)
    state = json.loads(raw.to_str())
    vocabulary = state["model"]["vocab"]
    vocabulary.update({f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)})
    state["model"]["byte_fallback"] = True
    raw = Tokenizer.from_str(json.dumps(state))
    strip = [decoders.Strip(" ", 1, 0)] if scheme != "never" else []
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    raw.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    return raw


@dataclass(frozen=True)
class Family:
    """A template with its tokenizer: the end of an assistant's turn, and what becomes of a content."""

    name: str
    template: str
    raw: Callable[[], Tokenizer]
    end: str
    bos: str | None = None
    eos: str = ""
    kept: Callable[[str], str] = str
    system: bool = True

    def tokenizer(self) -> Any:
        copy = Tokenizer.from_str(self.raw().to_str())
        special = {"eos_token": self.eos or self.end, "pad_token": self.eos or self.end}
        if self.bos:
            special["bos_token"] = self.bos
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=copy, **special)
        tokenizer.chat_template = self.template
        return tokenizer


# The prompt ends with the space that sentencepiece joins to the next word.
MISTRAL_SPACE = MISTRAL.replace("' [/INST]'", "' [/INST] '").replace("' ' + m", "m")

SPOKEN = """{%- for m in messages %}
    {{- m['role'] | upper + ': ' + m['content'] + ('<|end|>' if m['role'] == 'assistant' else ' ') }}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'ASSISTANT: ' }}{%- endif %}"""

S = ("<s>", "</s>")
IM = ("<|im_start|>", "<|im_end|>")
HEADERS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
PHIS = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>")
FAMILIES = [
    Family("chatml", CHATML, lambda: byte_level(IM), "<|im_end|>"),
    Family("chatml-nfc", CHATML, lambda: byte_level(IM, nfc=True), "<|im_end|>"),
    Family("chatml-prefix", CHATML, lambda: byte_level(IM, prefix=True), "<|im_end|>"),
    Family("llama", LLAMA, lambda: byte_level(HEADERS, lines=True), "<|eot_id|>", HEADERS[0], kept=str.strip),
    Family("mistral", MISTRAL, lambda: metaspace(S, "always"), "</s>", "<s>", kept=" {}".format),
    Family("mistral-first", MISTRAL, lambda: metaspace(S, "first"), "</s>", "<s>", kept=" {}".format),
    Family("mistral-space", MISTRAL_SPACE, lambda: metaspace(S, "always"), "</s>", "<s>"),
    Family("mistral-first-space", MISTRAL_SPACE, lambda: metaspace(S, "first"), "</s>", "<s>"),
    Family(
        "gemma", GEMMA, lambda: metaspace(("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), "never"),
        "<end_of_turn>", "<bos>", "<eos>", str.strip, False,
    ),
    Family("spoken", SPOKEN, lambda: byte_level(("<|end|>",), prefix=True), "<|end|>"),
    Family("phi", PHI, lambda: byte_level(PHIS), "<|end|>", eos="<|endoftext|>"),
    Family("phi-rstrip", PHI, lambda: byte_level(PHIS, rstrip=True), "<|end|>", eos="<|endoftext|>"),
]  # fmt: skip
BY_NAME = {family.name: family for family in FAMILIES}

FRAGMENTS = [
    "yes", " no", "\nit is 3", "\n\n", "  two", "a\tb", "héllo", "e\u0301", "日本語", "🙂", "👩‍👩‍👧", "ﬁ", "</b>",
    "[INST]", "assistant", "{{ x }}", "\\n", "'", '"', "0", "...", "\u00a0", "end \n", "is it", "\r\n", "<|im", "ⅷ",
    "\u200b",
]  # fmt: skip


def conversations(family: Family, count: int, seed: int) -> list[Turns]:
    """Conversations of one to four exchanges, of fragments that tokenizers find hard."""
    dice = random.Random(f"{family.name} {seed}")

    def text() -> str:
        return "".join(dice.choices(FRAGMENTS, k=dice.randint(1, 5)))

    def answer() -> str:
        return next(found for found in iter(text, None) if found.strip("\u200b \n\t\r\u00a0"))

    made = []
    for _ in range(count):
        system = [("system", dice.choice(["", text()]))] if family.system and dice.random() < 0.4 else []
        made.append(
            system + [turn for _ in range(dice.randint(1, 4)) for turn in (("user", text()), ("assistant", answer()))]
        )
    return made
