"""Tokens as text that a person can read: each with its borders, whitespace and control characters made visible."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

WHITESPACE = {" ": "·", "\n": "↵\n", "\t": "→", "\r": "␍"}
PART = "⋯"
"""Stands for a token whose bytes are the beginning of a character that a later token ends."""
LEARNT = "⟦⟧"
BORDER = "│"
# A sign of ours that is in the text itself is written as an escape, so that it is never taken for a sign.
OURS = set("".join(WHITESPACE.values()) + PART + LEARNT + BORDER) - {"\n"}
REPLACEMENT = "\ufffd"
# A character of UTF-8 has at most four bytes, so at most three tokens wait for its end.
WAITING = 3
# Controls, directions of writing, halves of characters, and what has no character at all.
UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}

Run = tuple[bool, str]
"""Whether it is a sign of ours rather than the text itself, and what is shown."""


@dataclass(frozen=True)
class Piece:
    """One token of a sample: where it stands, its text, whether it is supervised, whether it is a special token."""

    position: int
    id: int
    text: str
    learnt: bool
    special: bool = False

    @property
    def runs(self) -> list[Run]:
        return runs(self.text) if self.text else [(True, PART)]

    @property
    def shown(self) -> str:
        return "".join(text for _, text in self.runs)

    @property
    def about(self) -> str:
        kind = ", special" if self.special else ""
        return f"token {self.id}, position {self.position}, {'learnt' if self.learnt else 'not learnt'}{kind}"


def pieces(ids: Ids, supervised: Mask, tokenizer: Any) -> list[Piece]:
    """Tokens int64 [tokens] and their mask bool [tokens] as text; the texts together are the decoded whole."""
    special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    special |= set(tokenizer.all_special_ids)
    numbers: list[int] = ids.tolist()
    whole = zip(numbers, texts(numbers, tokenizer), supervised.tolist(), strict=True)
    return [Piece(at, id, text, learnt, id in special) for at, (id, text, learnt) in enumerate(whole)]


def texts(ids: Sequence[int], tokenizer: Any) -> Iterator[str]:
    """The text that each token adds, decoded behind the one before it, since some tokenizers join words by that.

    Empty for a token that ends in the middle of a character: the token that completes it has the whole character.
    """

    def decode(part: Sequence[int]) -> str:
        text: str = tokenizer.decode(part, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    before, said = 0, 0
    for position in range(len(ids)):
        known, now = decode(ids[before:said]), decode(ids[before : position + 1])
        ended = position + 1 == len(ids) or position - said >= WAITING
        if now.endswith(REPLACEMENT) and not ended:
            yield ""
            continue
        yield now[len(known) :]
        before, said = said, position + 1


def runs(text: str) -> list[Run]:
    """A text in pieces: whitespace as signs, what cannot be seen or could be taken for a sign as escapes."""
    made: list[Run] = []
    for character in text:
        sign = WHITESPACE.get(character) or _escape(character)
        if sign or not made or made[-1][0]:
            made.append((bool(sign), sign or character))
        else:
            made[-1] = (False, made[-1][1] + character)
    return made


def _escape(character: str) -> str:
    if character not in OURS and unicodedata.category(character) not in UNSEEN:
        return ""
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def marked(shown: Sequence[Piece]) -> str:
    """For a log, without a colour: what is learnt stands in ⟦ ⟧, and a │ between any two tokens."""
    made, before = [], False
    for piece in shown:
        made.append(LEARNT[1] if before and not piece.learnt else "")
        made.append(BORDER if made[1:] else "")
        made.append(LEARNT[0] if piece.learnt and not before else "")
        made.append(piece.shown)
        before = piece.learnt
    return "".join([*made, LEARNT[1] if before else ""])
