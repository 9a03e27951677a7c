"""Chat data as people bring it: one JSON object a line, checked so that every fault has a file and a line.

{"type": "chatml", "messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}

and the other formats of `formats`. A file is read line by line, so its size does not matter. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trackbed.data.chat import formats, lines
from trackbed.data.chat.formats import Format
from trackbed.data.chat.lines import named
from trackbed.data.chat.turns import Conversation, Message
from trackbed.errors import DataError, Problem

__all__ = ["MOST_PROBLEMS", "Conversation", "Message", "hopeless", "parse", "read", "recognised", "scan"]

MOST_PROBLEMS = 20


def read(path: Path, form: Format | None = None) -> list[Conversation]:
    """Every conversation of a JSONL file, in order; the format is recognised when it is not stated.

    Raises DataError with every faulty line (the first 20 of them) named by file and line.
    """
    problems: list[Problem] = []
    conversations = []
    for item in scan(path, form):
        if isinstance(item, Problem):
            problems.append(item)
        else:
            conversations.append(item)
    if not problems and not conversations:
        problems.append(named("data.empty-file", str(path), "the file has no conversation", remedy="give it lines"))
    if problems:
        raise DataError(_first(problems, path))
    return conversations


def _first(problems: list[Problem], path: Path) -> list[Problem]:
    more = len(problems) - MOST_PROBLEMS
    if more <= 0:
        return problems
    return [*problems[:MOST_PROBLEMS], named("data.more", str(path), f"and {more} more faulty lines")]


def scan(path: Path, form: Format | None = None) -> Iterator[Conversation | Problem]:
    """A whole file, one line in memory at a time; it ends early where no later line can be judged."""
    try:
        for number, raw in lines.numbered(path):
            where = f"{path}:{number}"
            found = form or recognised(raw, where, first=number == 1)
            if isinstance(found, Format):
                form = found
                yield parse(raw, where, form, first=number == 1)
                continue
            yield found
            if hopeless(found, raw):
                return
    except OSError as error:
        yield named(
            "data.missing-file",
            str(path),
            f"the data file cannot be read: {error.strerror}",
            wanted="a JSONL file of conversations",
            remedy="correct the path in the job's data section",
        )


def parse(raw: bytes, where: str, form: Format, *, first: bool) -> Conversation | Problem:
    """One line of a file in the format `form`; `first` says that it is the first line."""
    record = lines.value(raw, where, first=first)
    return record if isinstance(record, Problem) else formats.convert(record, form, where)


def recognised(raw: bytes, where: str, *, first: bool) -> Format | Problem:
    """The format that a line shows, or what is wrong with it."""
    record = lines.value(raw, where, first=first)
    if isinstance(record, Problem):
        return record
    try:
        return formats.recognise([record])
    except DataError as error:
        return replace(error.problems[0], where=where)


def hopeless(fault: Problem, raw: bytes) -> bool:
    """Whether no later line can be judged either."""
    return fault.id == "data.format-ambiguous" or raw.startswith(lines.UTF16)
