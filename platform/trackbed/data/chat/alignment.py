"""From a text and its spans to token ids and a mask: the whole text is tokenised once, and a token is supervised when
it lies inside a span.

Where a token lies across the beginning of a span, the text is cut there and the two sides are tokenised apart, as they
are when the model is used: the prompt is tokenised before there is an answer.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from trackbed.data.chat.lines import named
from trackbed.data.chat.template import Rendered, Span
from trackbed.errors import ModelError, Problem

Ids = npt.NDArray[np.int64]
Range = tuple[int, int]


@dataclass(frozen=True)
class Sample:
    """One encoded conversation: ids (int64, [tokens]) and supervised (bool, [tokens])."""

    ids: Ids
    supervised: npt.NDArray[np.bool_]
    where: str


class Aligner:
    """A tokenizer and what it takes to know which characters each of its tokens stands for."""

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ModelError(_slow(tokenizer))
        self._backend = tokenizer.backend_tokenizer
        self._size = len(tokenizer)
        self._steps = _steps(self._backend.pre_tokenizer)
        self._normalizer = _component(self._backend.normalizer).get("type")
        added = tokenizer.added_tokens_decoder.values()
        self._special = [str(token.content) for token in added if _splits(token)]
        self._lengths = _byte_lengths(tokenizer) if self._counts_bytes() else None

    def fits(self, tokenizer: Any) -> bool:
        """Whether the tokenizer is still what it was."""
        return len(tokenizer) == self._size and tokenizer.backend_tokenizer is self._backend

    def samples(self, rendered: Sequence[Rendered]) -> list[Sample | Problem]:
        """A sample for each conversation, or why its mask would be wrong."""
        # Whoever last called the tokenizer may have left it padding.
        self._backend.no_padding()
        self._backend.no_truncation()
        if self._lengths is None:
            return [self._by_offsets(item) for item in rendered]
        items = [_composed(item) for item in rendered] if self._normalizer == "NFC" else rendered
        return self._by_bytes(items, self._ids([item.text for item in items])) if items else []

    def _ids(self, texts: list[str]) -> list[list[int]]:
        """The ids of texts. What all of them begin with, often a long system turn, is tokenised once."""
        shared = self._shared(_beginning(texts)) if len(texts) > 1 else 0
        head = self._backend.encode(texts[0][:shared], add_special_tokens=False).ids if shared else []
        batch = self._backend.encode_batch_fast([text[shared:] for text in texts], add_special_tokens=False)
        return [head + found.ids for found in batch]

    def _shared(self, beginning: str) -> int:
        """Where a text may be cut without changing its ids: before a special token, on which tokenizers split first."""
        return max((beginning.rfind(token) for token in self._special), default=0)

    def _counts_bytes(self) -> bool:
        """Whether the tokens' bytes, one after the other, are the text's: then lengths tell the places, for half the
        price of the tokenizer's own offsets."""
        kinds = {step["type"] for step in self._steps}
        return (
            "ByteLevel" in kinds
            and kinds <= {"ByteLevel", "Split", "Digits"}
            and not any(step.get("add_prefix_space") or step.get("behavior") == "Removed" for step in self._steps)
            and self._normalizer in (None, "NFC")
        )

    def _by_bytes(self, items: Sequence[Rendered], ids: list[list[int]]) -> list[Sample | Problem]:
        """All samples at once: their tokens in one row, and places counted in bytes along it."""
        assert self._lengths is not None
        row = np.fromiter(chain.from_iterable(ids), np.int64)
        ends = np.concatenate([[0], self._lengths[row].cumsum()])
        stops = np.cumsum([len(part) for part in ids])
        starts = stops - [len(part) for part in ids]
        borders = [_in_bytes(item, size) for item, size in zip(items, ends[stops] - ends[starts], strict=True)]
        bases = np.repeat(ends[starts], [len(inner) for inner in borders])
        places = np.fromiter(chain.from_iterable(borders), np.int64) + bases
        found = ends.searchsorted(places)
        edges = np.zeros(len(ends), np.int64)
        edges[found[::2]] += 1
        edges[found[1::2]] -= 1
        supervised = edges.cumsum() > 0
        exact = iter((ends[found] == places).tolist())
        return [
            Sample(row[start:stop], supervised[start:stop], item.where)
            # A sample without borders has tokens that are not its text, as one that swallows the spaces beside it.
            if inner and all([next(exact) for _ in inner])
            else self._by_offsets(item)
            for item, inner, start, stop in zip(items, borders, starts.tolist(), stops.tolist(), strict=True)
        ]

    def _by_offsets(self, item: Rendered) -> Sample | Problem:
        """From the last span to the first: whatever has no token across its beginning stays as it is."""
        text, spans = item.text, item.spans
        parts: list[tuple[Sequence[int], Sequence[bool]]] = []
        while True:
            found = self._exact.encode(text, add_special_tokens=False)
            ranges = [_range(found.offsets, text, span) for span in spans]
            bad = max((index for index, span in enumerate(ranges) if span is None), default=-1)
            if bad < 0:
                parts.append((found.ids, _mask(ranges, len(found.ids))))
                return _joined(parts, item.where)
            begin, end = spans[bad]
            tail = _count(found.offsets, end)
            parts.append((found.ids[tail:], _mask(ranges[bad + 1 :], len(found.ids))[tail:]))
            answer = self._continued.encode(text[begin:end], add_special_tokens=False).ids
            text, spans = text[:begin], spans[:bad]
            parts.append((answer, [True] * len(answer)))
            if not self._continues(text, answer, item.text[begin:end]):
                return _straddled(item, begin)

    def _continues(self, prompt: str, answer: list[int], text: str) -> bool:
        """Whether the tokens of the answer, after those of the prompt, are the answer's text."""
        last = self._exact.encode(prompt, add_special_tokens=False).ids[-1:]
        decode = self._exact.decode
        return bool(decode(last + answer, skip_special_tokens=False) == decode(last, skip_special_tokens=False) + text)

    @cached_property
    def _exact(self) -> Any:
        """The tokenizer with offsets that leave nothing out: a ByteLevel post-processor trims the spaces off them."""
        if not any(step["type"] == "ByteLevel" for step in self._steps):
            return self._backend
        return _changed(self._backend, {"post_processor": None})

    @cached_property
    def _continued(self) -> Any:
        """The tokenizer without a space before every text: an answer goes on where the prompt ended."""
        state = json.loads(self._backend.to_str())
        pre = {"pre_tokenizer": _without_space(state["pre_tokenizer"])}
        return _changed(self._backend, {**pre, "normalizer": _without_space(state["normalizer"])})


_aligners: WeakKeyDictionary[Any, Aligner] = WeakKeyDictionary()


def aligner(tokenizer: Any) -> Aligner:
    """The tokenizer's aligner, made once. Raises ModelError for a tokenizer without offsets."""
    known = _aligners.get(tokenizer)
    if known is None or not known.fits(tokenizer):
        known = _aligners[tokenizer] = Aligner(tokenizer)
    return known


def _in_bytes(item: Rendered, size: int) -> list[int]:
    """The borders of the spans in bytes; none when the tokens have not as many bytes as the text."""
    text = item.text
    borders = [border for span in item.spans for border in span]
    if text.isascii():
        return borders if size == len(text) else []
    return [len(text[:border].encode()) for border in borders] if size == len(text.encode()) else []


def _beginning(texts: list[str]) -> str:
    """What all texts begin with: what the first and the last of them in order do."""
    first, last = min(texts), max(texts)
    pairs = enumerate(zip(first, last, strict=False))
    return first[: next((at for at, (one, other) in pairs if one != other), len(first))]


def _splits(token: Any) -> bool:
    return token.special and not (token.lstrip or token.rstrip or token.single_word or token.normalized)


def _component(part: Any) -> dict[str, Any]:
    """A part of a tokenizer as its file has it."""
    return dict(json.loads(part.__getstate__())) if part is not None else {}


def _steps(pre_tokenizer: Any) -> list[dict[str, Any]]:
    state = _component(pre_tokenizer)
    return list(state["pretokenizers"]) if state.get("type") == "Sequence" else [state] if state else []


def _byte_lengths(tokenizer: Any) -> Ids:
    """int64 [ids]: the bytes each token stands for; in a byte-level vocabulary a character is a byte."""
    vocabulary = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True)
    lengths = np.zeros(max(vocabulary.values()) + 1, np.int64)
    lengths[np.fromiter(vocabulary.values(), np.int64)] = np.fromiter(map(len, vocabulary), np.int64)
    for id, token in tokenizer.added_tokens_decoder.items():
        lengths[id] = len(token.content.encode())
    return lengths


def _composed(item: Rendered) -> Rendered:
    """As the tokenizer normalises it (NFC), the spans moved along."""
    if unicodedata.is_normalized("NFC", item.text):
        return item

    def composed(text: str) -> str:
        return unicodedata.normalize("NFC", text)

    spans = tuple((len(composed(item.text[:begin])), len(composed(item.text[:end]))) for begin, end in item.spans)
    return Rendered(composed(item.text), spans, item.where)


def _range(offsets: list[Range], text: str, span: Span) -> Range | None:
    """The tokens [first, last) inside a span; None when one lies across its border."""
    begin, end = span
    first = next((index for index, (_, to) in enumerate(offsets) if to > begin), len(offsets))
    last = _count(offsets, end)
    if first >= last or offsets[first][0] < begin:
        return None
    # An end token that swallows the newline after it is still the end token.
    return None if text[end : offsets[last - 1][1]].strip() else (first, last)


def _count(offsets: list[Range], end: int) -> int:
    """How many tokens begin before a place."""
    return next((index for index, (begin, _) in enumerate(offsets) if begin >= end), len(offsets))


def _mask(ranges: Sequence[Range | None], size: int) -> list[bool]:
    mask = [False] * size
    for first, last in filter(None, ranges):
        mask[first:last] = [True] * (last - first)
    return mask


def _joined(parts: list[tuple[Sequence[int], Sequence[bool]]], where: str) -> Sample:
    ids = [id for part, _ in reversed(parts) for id in part]
    supervised = [flag for _, part in reversed(parts) for flag in part]
    return Sample(np.array(ids, np.int64), np.array(supervised, np.bool_), where)


def _changed(backend: Any, parts: dict[str, Any]) -> Any:
    from tokenizers import Tokenizer

    unset = {"truncation": None, "padding": None}
    return Tokenizer.from_str(json.dumps({**json.loads(backend.to_str()), **unset, **parts}))


def _without_space(part: Any) -> Any:
    """A pre-tokenizer or a normalizer that puts no space before a text."""
    if not isinstance(part, dict) or part.get("type") == "Prepend":
        return None
    if part["type"] == "Sequence":
        name = "pretokenizers" if "pretokenizers" in part else "normalizers"
        return {**part, name: [kept for inner in part[name] if (kept := _without_space(inner))]}
    off = {"prepend_scheme": "never"} if part["type"] == "Metaspace" else {"add_prefix_space": False}
    return {**part, **off} if part["type"] in ("Metaspace", "ByteLevel") else part


def _straddled(item: Rendered, begin: int) -> Problem:
    what = f"a token lies across the beginning of an assistant's turn, {item.text[begin - 9 : begin + 9]!r}"
    wanted = "a tokenizer whose tokens for prompt and answer, each alone, decode to the text"
    return named("model.tokens-across", item.where, what, wanted=wanted)


def _slow(tokenizer: Any) -> Problem:
    where = str(getattr(tokenizer, "name_or_path", "")) or type(tokenizer).__name__
    remedy = "save the tokenizer with its tokenizer.json, as AutoTokenizer does"
    return named("model.slow-tokenizer", where, "the tokenizer cannot say which characters a token is", remedy=remedy)
