"""Chat data as people bring it: one JSON object a line, checked so that every fault has a file and a line.

{"type": "chatml", "messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackbed.errors import DataError, Problem

ROLES = ("system", "user", "assistant")
MOST_PROBLEMS = 20


@dataclass(frozen=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True)
class Conversation:
    """One sample. `where` is file:line for a sample that was read."""

    messages: tuple[Message, ...]
    source: str = ""
    where: str = ""

    def to_json(self) -> dict[str, Any]:
        messages = [{"role": message.role, "content": message.content} for message in self.messages]
        return {"type": "chatml", "messages": messages, "source": self.source}


def read(path: Path) -> list[Conversation]:
    """Every conversation of a JSONL file, in order.

    Raises DataError with every faulty line (the first 20 of them) named by file and line.
    """
    problems: list[Problem] = []
    conversations = []
    for item in _scan(path):
        if isinstance(item, Problem):
            problems.append(item)
        else:
            conversations.append(item)
    if not problems and not conversations:
        problems.append(_problem("data.empty-file", str(path), "the file has no conversation", remedy="give it lines"))
    if problems:
        raise DataError(_first(problems, path))
    return conversations


def _first(problems: list[Problem], path: Path) -> list[Problem]:
    more = len(problems) - MOST_PROBLEMS
    if more <= 0:
        return problems
    return [*problems[:MOST_PROBLEMS], _problem("data.more", str(path), f"and {more} more faulty lines")]


def _scan(path: Path) -> Iterator[Conversation | Problem]:
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if raw.strip():
                    yield _line(raw, f"{path}:{number}", first=number == 1)
    except OSError as error:
        yield _problem(
            "data.missing-file",
            str(path),
            f"the data file cannot be read: {error.strerror}",
            wanted="a JSONL file of conversations",
            remedy="correct the path in the job's data section",
        )


def _line(raw: bytes, where: str, *, first: bool) -> Conversation | Problem:
    if first and raw.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return _problem(
            "data.bom",
            where,
            "the file begins with a byte-order mark",
            wanted="UTF-8 without a BOM",
            remedy="sed -i '1s/^\\xEF\\xBB\\xBF//' FILE",
        )
    try:
        record = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        return _problem(
            "data.not-utf8",
            where,
            f"byte {error.start + 1} of the line is not UTF-8 (0x{raw[error.start]:02x})",
            wanted="UTF-8 text",
            remedy="iconv -f LATIN1 -t UTF-8 FILE > NEW, if that is what it was written in",
        )
    except json.JSONDecodeError as error:
        return _cut_or_broken(raw, where, error)
    except RecursionError:
        return _problem("data.not-json", where, "the JSON is nested too deeply")
    return _conversation(record, where)


def _cut_or_broken(raw: bytes, where: str, error: json.JSONDecodeError) -> Problem:
    cut = not raw.endswith(b"\n") or error.pos >= len(raw.decode("utf-8").rstrip())
    what = "the line is cut off" if cut else "the line is not JSON"
    return _problem(
        "data.cut" if cut else "data.not-json",
        where,
        f"{what}: {error.msg} at character {error.pos + 1}",
        wanted="one whole JSON object a line",
        remedy="write the file again; a partial copy or a full disk leaves such a line" if cut else "mend the line",
    )


def _conversation(record: Any, where: str) -> Conversation | Problem:
    if not isinstance(record, dict) or not isinstance(record.get("messages"), list):
        return _problem(
            "data.no-messages", where, "there is no list `messages`", wanted='{"type": "chatml", "messages": [...]}'
        )
    if record.get("type", "chatml") != "chatml":
        return _problem("data.type", where, f"type is {record['type']!r}", wanted='"chatml"')
    if not record["messages"]:
        return _problem("data.empty", where, "the conversation is empty", remedy="delete the line")
    for position, message in enumerate(record["messages"], start=1):
        if problem := _bad_message(message, f"{where}: message {position}"):
            return problem
    messages = tuple(Message(item["role"], item["content"]) for item in record["messages"])
    if not any(message.role == "assistant" for message in messages):
        return _problem(
            "data.no-assistant",
            where,
            "no turn is the assistant's, so there is nothing to learn",
            remedy="add the answer, or delete the line",
        )
    if messages[0].role == "assistant":
        return _problem(
            "data.no-question", where, "the conversation begins with the assistant", wanted="a user's turn before it"
        )
    return Conversation(messages, str(record.get("source", "")), where)


def _bad_message(message: Any, where: str) -> Problem | None:
    if not isinstance(message, dict):
        return _problem("data.message", where, "a message is not an object", wanted='{"role": ..., "content": ...}')
    if message.get("role") not in ROLES:
        return _problem(
            "data.role", where, f"unknown role {message.get('role')!r}", wanted=f"one of {', '.join(ROLES)}"
        )
    if not isinstance(message.get("content"), str):
        kind = type(message.get("content")).__name__
        return _problem("data.not-text", where, f"content is not text but {kind}", wanted="a string")
    if any("\ud800" <= character <= "\udfff" for character in message["content"]):
        return _problem("data.not-text", where, "content has half a character (a lone surrogate)", wanted="whole text")
    if message["role"] == "assistant" and not message["content"].strip():
        return _problem(
            "data.empty-answer", where, "the assistant's turn is empty", remedy="write it or delete the line"
        )
    return None


def _problem(id: str, where: str, what: str, *, wanted: str = "", remedy: str = "") -> Problem:
    return Problem(id=id, where=where, what=what, wanted=wanted, remedy=remedy)
