"""From conversations to token ids and a mask of what is learnt: the assistant's turns and the tokens that end them.

The mask is made by construction: a conversation is rendered turn by turn with the model's own chat template, each piece
is tokenised on its own, and a piece is either wholly supervised or not at all. It is never made by comparing ids: in
many models the padding token is the end token, and a model that never learns to end never stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trackbed.data import chat
from trackbed.data.chat import Conversation
from trackbed.data.config import DataConfig
from trackbed.errors import DataError, ModelError, Problem

Piece = tuple[str, bool]
"""A text, and whether it is supervised."""


@dataclass(frozen=True)
class Sample:
    """One encoded conversation: ids (int64, [tokens]) and supervised (bool, [tokens])."""

    ids: npt.NDArray[np.int64]
    supervised: npt.NDArray[np.bool_]
    where: str


@dataclass(frozen=True)
class Dropped:
    """A conversation that is not trained on, and why."""

    where: str
    reason: str


@dataclass
class Encoded:
    """A data set ready for training; `kept` and `samples` go together."""

    samples: list[Sample] = field(default_factory=list)
    kept: list[Conversation] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    truncated: int = 0

    @property
    def tokens(self) -> int:
        return sum(len(sample.ids) for sample in self.samples)

    @property
    def supervised_tokens(self) -> int:
        return sum(int(sample.supervised.sum()) for sample in self.samples)


def load_tokenizer(folder: Path) -> Any:
    """A model's tokenizer; ModelError when it has no chat template."""
    # The class for a tokenizer.json needs no torch, which AutoTokenizer imports for seconds.
    if (folder / "tokenizer.json").exists():
        from transformers import PreTrainedTokenizerFast as Tokenizer
    else:
        from transformers import AutoTokenizer as Tokenizer

    tokenizer = Tokenizer.from_pretrained(folder)
    if not tokenizer.chat_template:
        raise ModelError(
            Problem(
                id="model.no-chat-template",
                where=str(folder),
                what="the tokenizer has no chat template",
                remedy="use an instruction-tuned model, or save a template with the tokenizer",
            )
        )
    return tokenizer


def encode(path: Path, tokenizer: Any, config: DataConfig) -> Encoded:
    """Read and encode a whole file. Raises DataError for a faulty line, a sample too long under `too_long: fail`,
    and a file of which nothing is left."""
    conversations = chat.read(path)
    encoded = Encoded()
    too_long: list[Problem] = []
    for conversation, sample in zip(conversations, tokenise(conversations, tokenizer), strict=True):
        if len(sample.ids) > config.max_length and config.too_long == "fail":
            too_long.append(_too_long(sample, config.max_length))
        else:
            _add(encoded, conversation, sample, config)
    if too_long:
        raise DataError(too_long[: chat.MOST_PROBLEMS])
    if not encoded.samples:
        raise DataError(_nothing_left(path, encoded, config))
    return encoded


def tokenise(conversations: list[Conversation], tokenizer: Any) -> Iterator[Sample]:
    """Encode conversations in order, all pieces in one call of the tokenizer."""
    pieces = [_pieces(conversation, tokenizer) for conversation in conversations]
    texts = [text for sample in pieces for text, _ in sample]
    ids = iter(tokenizer(texts, add_special_tokens=False)["input_ids"])
    for conversation, sample in zip(conversations, pieces, strict=True):
        parts = [(next(ids), supervised) for _, supervised in sample]
        yield Sample(
            np.array([token for tokens, _ in parts for token in tokens], dtype=np.int64),
            np.array([supervised for tokens, supervised in parts for _ in tokens], dtype=np.bool_),
            conversation.where,
        )


def prompt(conversation: Conversation, tokenizer: Any) -> tuple[str, str]:
    """The text up to the last assistant turn, and that turn's content: a question and its right answer."""
    messages = conversation.messages
    last = max(index for index, message in enumerate(messages) if message.role == "assistant")
    return _render(conversation, tokenizer, last, generate=True), messages[last].content.strip()


def _pieces(conversation: Conversation, tokenizer: Any) -> Iterable[Piece]:
    pieces: list[Piece] = []
    done = ""
    for index, message in enumerate(conversation.messages):
        if message.role != "assistant":
            continue
        before = _render(conversation, tokenizer, index, generate=True)
        after = _render(conversation, tokenizer, index + 1, generate=False)
        if not before.startswith(done) or not after.startswith(before):
            raise _inseparable(conversation)
        answer = after[len(before) :]
        ended = answer.rstrip("\n")
        pieces += [(before[len(done) :], False), (ended, True), (answer[len(ended) :], False)]
        done = after
    return [piece for piece in pieces if piece[0]]


def _render(conversation: Conversation, tokenizer: Any, turns: int, *, generate: bool) -> str:
    from jinja2 import TemplateError

    messages = [{"role": message.role, "content": message.content} for message in conversation.messages[:turns]]
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate))
    except TemplateError as error:
        what = f"the model's chat template refuses the conversation: {error}"
        raise DataError(Problem(id="data.template", where=conversation.where, what=what)) from error


def _inseparable(conversation: Conversation) -> ModelError:
    return ModelError(
        Problem(
            id="model.template-inseparable",
            where=conversation.where,
            what="the chat template rewrites earlier turns, so the assistant's tokens cannot be told apart",
            wanted="a template that renders n turns as a beginning of n+1 turns",
        )
    )


def _add(encoded: Encoded, conversation: Conversation, sample: Sample, config: DataConfig) -> None:
    excess = len(sample.ids) - config.max_length
    if excess > 0 and config.too_long == "drop":
        encoded.dropped.append(Dropped(sample.where, f"{len(sample.ids)} tokens, at most {config.max_length}"))
        return
    if excess > 0:
        sample = Sample(sample.ids[excess:], sample.supervised[excess:], sample.where)
        encoded.truncated += 1
    # The first token of a row is never predicted, so it does not count as something to learn.
    if not sample.supervised[1:].any():
        encoded.dropped.append(Dropped(sample.where, "no supervised token"))
        return
    encoded.samples.append(sample)
    encoded.kept.append(conversation)


def _too_long(sample: Sample, limit: int) -> Problem:
    return Problem(
        id="data.too-long",
        where=sample.where,
        what=f"the sample has {len(sample.ids)} tokens",
        wanted=f"at most data.max_length = {limit}",
        remedy="raise data.max_length, or set data.too_long to drop or truncate_left",
    )


def _nothing_left(path: Path, encoded: Encoded, config: DataConfig) -> Problem:
    shown = "; ".join(f"{item.where}: {item.reason}" for item in encoded.dropped[:3])
    return Problem(
        id="data.all-dropped",
        where=str(path),
        what=f"every one of the {len(encoded.dropped)} samples was dropped ({shown})",
        wanted=f"samples of at most data.max_length = {config.max_length} tokens",
        remedy="raise data.max_length, or set data.too_long to truncate_left",
    )
