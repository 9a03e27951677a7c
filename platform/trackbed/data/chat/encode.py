"""From conversations to samples: token ids and a mask of what is learnt, the assistant's turns and the tokens that end
them. `template` finds the turns in the text and `alignment` the tokens in the turns; here samples are cut to length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from trackbed.data.chat.alignment import Sample, aligner
from trackbed.data.chat.jsonl import Conversation
from trackbed.data.chat.template import Rendered, Template
from trackbed.data.config import DataConfig
from trackbed.errors import DataError, ModelError, Problem

__all__ = ["Dropped", "Sample", "attempt", "fit", "load_tokenizer", "nothing_left", "prompt", "tokenise"]

AT_ONCE = 256


@dataclass(frozen=True)
class Dropped:
    """A conversation that is not trained on, and why. `tokens` is its length; with data.max_length at `needs` it would
    keep every supervised token."""

    where: str
    reason: str
    tokens: int = 0
    needs: int = 0


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


def tokenise(conversations: Iterable[Conversation], tokenizer: Any) -> Iterator[Sample]:
    """Encode conversations in order. Raises DataError or ModelError at the first that cannot be, by its `where`."""
    for item in attempt(conversations, tokenizer):
        if isinstance(item, Problem):
            raise (ModelError if item.id.startswith("model.") else DataError)(item)
        yield item


def attempt(conversations: Iterable[Conversation], tokenizer: Any) -> Iterator[Sample | Problem]:
    """Encode conversations in order, some hundred at a time: for each its sample, or why it has none."""
    template, tokens = Template(tokenizer), aligner(tokenizer)
    stream = iter(conversations)
    while part := list(islice(stream, AT_ONCE)):
        rendered = [template.rendered(conversation) for conversation in part]
        samples = iter(tokens.samples([item for item in rendered if isinstance(item, Rendered)]))
        yield from (item if isinstance(item, Problem) else next(samples) for item in rendered)


def prompt(conversation: Conversation, tokenizer: Any) -> tuple[str, str]:
    """The text up to the last turn that is learnt, and that turn's content: a question and its right answer."""
    messages = conversation.messages
    last = max(index for index, message in enumerate(messages) if message.learnt)
    return Template(tokenizer).prompt(conversation, last), messages[last].content.strip()


def fit(sample: Sample, config: DataConfig) -> Sample | Dropped | Problem:
    """A sample within data.max_length, by data.too_long: cut from the left, dropped, or a Problem."""
    size = len(sample.ids)
    excess = size - config.max_length
    if excess > 0 and config.too_long == "fail":
        return _too_long(sample, config.max_length)
    if excess > 0 and config.too_long == "drop":
        return Dropped(sample.where, f"{size} tokens, at most {config.max_length}", size, size)
    cut = Sample(sample.ids[excess:], sample.supervised[excess:], sample.where) if excess > 0 else sample
    # The first token of a row is never predicted, so it does not count as something to learn.
    if cut.supervised[1:].any():
        return cut
    needs = size - int(sample.supervised.argmax()) + 1
    return Dropped(sample.where, f"no supervised token in the last {len(cut.ids)} of {size} tokens", size, needs)


def _too_long(sample: Sample, limit: int) -> Problem:
    return Problem(
        id="data.too-long",
        where=sample.where,
        what=f"the sample has {len(sample.ids)} tokens",
        wanted=f"at most data.max_length = {limit}",
        remedy="raise data.max_length, or set data.too_long to drop or truncate_left",
    )


def nothing_left(path: Path, dropped: Sequence[Dropped], config: DataConfig) -> Problem:
    """The refusal of a file whose samples were all dropped, with the counts."""
    shown = "; ".join(f"{item.where}: {item.reason}" for item in dropped[:3])
    lost = "dropped" if config.too_long == "drop" else "left without a supervised token"
    needs = [item.needs for item in dropped]
    return Problem(
        id="data.all-dropped",
        where=str(path),
        what=f"every one of the {len(dropped)} samples was {lost} ({shown}); the longest has "
        f"{max(item.tokens for item in dropped)} tokens",
        wanted=f"samples that keep their supervised tokens within data.max_length = {config.max_length}",
        remedy=f"set data.max_length to {max(needs)} for every supervised token; {min(needs)} keeps one sample's",
    )
