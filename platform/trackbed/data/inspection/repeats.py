"""Samples that are there twice: in one part, or in both, where the held-out loss then measures memory.

Texts are compared after normalising case and spacing, by hashes of 64 bits; 24 bytes a sample are kept in memory.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trackbed.data.chat.fingerprint import Progress
from trackbed.data.chat.prepared import Prepared
from trackbed.data.chat.turns import Conversation, Message
from trackbed.data.inspection import near
from trackbed.data.inspection.near import Found, Numbers, Signatures

NAMED = 10
EXCERPT = 80
EVERY = 500
COMPARED = ("conversation", "question", "answer")


@dataclass(frozen=True)
class Pair:
    """A sample, the one it is like, the share of what they have in common, and how it begins."""

    where: str
    same_as: str
    similarity: float
    text: str


@dataclass(frozen=True)
class Group:
    """A sample that is there `count` times."""

    where: str
    count: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something of the data that a person should know: what, what it means, what to do, and the first of its places."""

    id: str
    part: str
    count: int
    what: str
    means: str
    remedy: str
    named: list[Pair] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)


@dataclass(frozen=True)
class Read:
    """What a part's conversations come to: hashes uint64 [samples] by what is compared, turns, and who speaks them."""

    prepared: Prepared
    keys: dict[str, npt.NDArray[np.uint64]]
    turns: Counter[int]
    roles: Counter[str]

    def pair(self, number: int, other: Read, theirs: int, share: float = 1.0) -> Pair:
        where, same_as = self.prepared.where(number), other.prepared.where(theirs)
        return Pair(where, same_as, round(share, 3), self.excerpt(number))

    def excerpt(self, number: int) -> str:
        """How the first turn after the system's begins."""
        turns = self.prepared.conversation(number).messages
        first = next((turn for turn in turns if turn.role != "system"), turns[0])
        text = " ".join(first.content.split())
        return text if len(text) <= EXCERPT else f"{text[: EXCERPT - 1]}…"


def read(prepared: Prepared, name: str, progress: Progress) -> Read:
    """Read every conversation of a part once, one in memory at a time."""
    keys = {what: np.zeros(len(prepared), dtype=np.uint64) for what in COMPARED}
    turns: Counter[int] = Counter()
    roles: Counter[str] = Counter()
    for number in range(len(prepared)):
        conversation = prepared.conversation(number)
        turns[len(conversation.messages)] += 1
        roles.update(message.role for message in conversation.messages)
        for what, messages in _compared(conversation).items():
            keys[what][number] = _hash(messages)
        if number % EVERY == 0 or number + 1 == len(prepared):
            progress(f"read {name}", number + 1, len(prepared))
    return Read(prepared, keys, turns, roles)


def _compared(conversation: Conversation) -> dict[str, Iterable[Message]]:
    """The whole; what is asked before the first answer that is learnt; and all answers that are."""
    messages = conversation.messages
    first = next(index for index, message in enumerate(messages) if message.learnt)
    question = [message for message in messages[:first] if message.role != "system"]
    return {
        "conversation": messages,
        "question": question,
        "answer": [message for message in messages if message.learnt],
    }


def _hash(messages: Iterable[Message]) -> int:
    said = [[turn.role, normalised(turn.content), list(turn.tool_calls)] for turn in messages]
    return int.from_bytes(hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=8).digest(), "little")


def normalised(text: str) -> str:
    """Without the differences of case and of spacing."""
    return " ".join(text.casefold().split())


def findings(train: Read, heldout: Read, progress: Progress) -> list[Finding]:
    """What is there twice, the leaks first."""
    shared = near.common([train.prepared, heldout.prepared])
    signs = [Signatures(each.prepared, shared, progress) for each in (train, heldout)]
    found = [*_leaks(train, heldout, signs[0], signs[1]), *_inside("train", train, signs[0])]
    found += _inside("heldout", heldout, signs[1])
    return [each for each in found if each.count]


def _leaks(train: Read, heldout: Read, ours: Signatures, theirs: Signatures) -> list[Finding]:
    twins = {what: in_other(heldout.keys[what], train.keys[what]) for what in COMPARED}
    whole = twins["conversation"] >= 0
    question = np.where(whole, -1, twins["question"])
    answer = np.where(whole | (question >= 0), -1, twins["answer"])
    alike = near.across(theirs, ours, skip=whole)
    found = {
        "conversation": _pairs(twins["conversation"]),
        "question": _pairs(question),
        "near": alike,
        "answer": _pairs(answer),
    }
    return [_leak(what, heldout, train, pairs) for what, pairs in found.items()]


def _leak(what: str, heldout: Read, train: Read, pairs: Found) -> Finding:
    said, means, remedy = LEAKS[what]
    named = [heldout.pair(mine, train, *hit) for mine, hit in sorted(pairs.items())[:NAMED]]
    words = f"{_count(len(pairs), len(heldout.prepared))} held-out samples {said}"
    return Finding(
        id=f"leak.{what}", part="heldout", count=len(pairs), what=words, means=means, remedy=remedy, named=named
    )


def _inside(name: str, part: Read, signs: Signatures) -> list[Finding]:
    first = first_equal(part.keys["conversation"])
    again = first != np.arange(len(first))
    exact: Found = {int(number): (int(first[number]), 1.0) for number in np.flatnonzero(again)}
    return [_repeated("exact", name, part, exact), _repeated("near", name, part, near.inside(signs, skip=again))]


def _repeated(what: str, name: str, part: Read, pairs: Found) -> Finding:
    said, means, remedy = REPEATS[what]
    named = [part.pair(mine, part, *hit) for mine, hit in sorted(pairs.items())[:NAMED]]
    often = Counter(first for first, _ in pairs.values()).most_common(NAMED)
    groups = [Group(part.prepared.where(first), count + 1, part.excerpt(first)) for first, count in often]
    words = f"{_count(len(pairs), len(part.prepared))} samples of {name} {said}"
    return Finding(
        id=f"repeat.{what}", part=name, count=len(pairs), what=words, means=means, remedy=remedy, named=named,
        groups=groups,
    )  # fmt: skip


def _count(count: int, total: int) -> str:
    return f"{count} of {total} ({count / max(1, total):.1%})"


def _pairs(other: Numbers) -> Found:
    return {int(number): (int(other[number]), 1.0) for number in np.flatnonzero(other >= 0)}


def first_equal(keys: npt.NDArray[np.uint64]) -> Numbers:
    """For each the first that has the same key, int64 [samples]: itself, where it is the first."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first[inverse]


def in_other(keys: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> Numbers:
    """For each the first of the others that has the same key, int64 [samples]; -1 where none has."""
    unique, first = np.unique(other, return_index=True)
    at = np.minimum(np.searchsorted(unique, keys), len(unique) - 1)
    return np.where(unique[at] == keys, first[at], -1)


# What is said, what it means, and what to do.
LEAKS = {
    "conversation": (
        "are in train as well, word for word",
        "the held-out loss measures memory, not learning",
        "delete these lines from one of the two parts",
    ),
    "question": (
        "ask what a sample in train asks, with another answer",
        "the model has seen the question: held-out figures look better than on new questions, or the two answers "
        "contradict each other",
        "keep all samples with one question in one part",
    ),
    "near": (
        f"share at least {near.LEAST:.0%} of their three-token shingles with a sample in train",
        "nearly the same text is trained on and measured on, as versions of one document are",
        "split by source, not by line, or delete these lines from one part",
    ),
    "answer": (
        "have an answer that is also the answer to another question in train",
        "normal where answers are short or labels; where they are long, the answer can be known by heart",
        "look at the named pairs; keep all samples with one long answer in one part",
    ),
}
REPEATS = {
    "exact": (
        "repeat an earlier one, but for case and spacing",
        "they count more than the others and are learnt by heart first",
        "delete the later lines, unless the weight is meant",
    ),
    "near": (
        f"share at least {near.LEAST:.0%} of their three-token shingles with an earlier one",
        "the set is less varied than its size says",
        "look at the named pairs, and keep one of each where they are versions of one text",
    ),
}
