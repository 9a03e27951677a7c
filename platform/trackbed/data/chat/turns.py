"""A conversation and its turns, and the rules that hold whatever format it was written in.

Standard library only, and nothing that Python 3.10 lacks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from trackbed.data.chat.lines import named
from trackbed.errors import Problem

ROLES = ("system", "user", "assistant", "tool")
# Kept out of `content` by some servers. To drop it unsaid would train a model that was never meant.
REASONING = ("reasoning_content", "reasoning", "thinking")
MOST_NAMED = 3

Json = dict[str, Any]
Part = tuple[str, Any]
"""Where in the record a turn stands ("message 2", "output"), and the turn as it was written."""


@dataclass(frozen=True)
class Message:
    """One turn. `weight` 0 says that an assistant's turn is read and not learnt; `content` may be empty beside
    `tool_calls`, each of which is {"type": "function", "id": ..., "function": {"name": ..., "arguments": {...}}}."""

    role: str
    content: str
    weight: int = 1
    tool_calls: tuple[Json, ...] = field(default=(), hash=False)
    tool_call_id: str = ""
    name: str = ""

    @property
    def learnt(self) -> bool:
        return self.role == "assistant" and self.weight == 1

    def turn(self) -> Json:
        """What a chat template is given."""
        turn: Json = {"role": self.role, "content": self.content}
        if self.tool_calls:
            turn["tool_calls"] = list(self.tool_calls)
        if self.tool_call_id:
            turn["tool_call_id"] = self.tool_call_id
        if self.name:
            turn["name"] = self.name
        return turn

    def to_json(self) -> Json:
        return self.turn() if self.weight else {**self.turn(), "weight": 0}


@dataclass(frozen=True)
class Conversation:
    """One sample. `where` is file:line for a sample that was read; `tools` are those the assistant may call."""

    messages: tuple[Message, ...]
    source: str = ""
    where: str = ""
    tools: tuple[Json, ...] = field(default=(), hash=False)

    def to_json(self) -> Json:
        messages = [message.to_json() for message in self.messages]
        record = {"type": "chatml", "messages": messages, "source": self.source}
        return {**record, "tools": list(self.tools)} if self.tools else record


def conversation(parts: list[Part], record: Json, where: str) -> Conversation | Problem:
    """Turns as they were written, checked and joined; `record` gives the source and the tools."""
    if not parts:
        return named("data.empty", where, "the conversation is empty", remedy="delete the line")
    read = [_message(raw, f"{where}: {label}") for label, raw in parts]
    tools = _tools(record.get("tools"), where)
    problems = [item for item in [*read, tools] if isinstance(item, Problem)]
    if problems:
        return _joined(problems, where)
    messages = tuple(item for item in read if isinstance(item, Message))
    if problem := _bad_order(messages, where):
        return problem
    return Conversation(messages, str(record.get("source") or ""), where, tools if isinstance(tools, tuple) else ())


def _joined(problems: list[Problem], where: str) -> Problem:
    """A line has one problem; it says what else is wrong with the line."""
    first, *more = problems
    if not more:
        return first
    shown = "; ".join(f"{item.where.removeprefix(f'{where}: ')}: {item.what}" for item in more[:MOST_NAMED])
    rest = f"; and {len(more) - MOST_NAMED} more" if len(more) > MOST_NAMED else ""
    return replace(first, what=f"{first.what} (also in this line: {shown}{rest})")


def _bad_order(messages: tuple[Message, ...], where: str) -> Problem | None:
    assistants = [message for message in messages if message.role == "assistant"]
    if not assistants:
        what = "no turn is the assistant's, so there is nothing to learn"
        return named("data.no-assistant", where, what, remedy="add the answer, or delete the line")
    if messages[0].role == "assistant":
        what = "the conversation begins with the assistant"
        return named("data.no-question", where, what, wanted="a user's turn before it")
    if not any(message.learnt for message in assistants):
        what = f"each of the {len(assistants)} assistant turns has weight 0, so there is nothing to learn"
        return named("data.nothing-learnt", where, what, remedy="set a weight to 1, or delete the line")
    return None


def _message(raw: Any, where: str) -> Message | Problem:
    if not isinstance(raw, dict):
        return named("data.message", where, "a message is not an object", wanted='{"role": ..., "content": ...}')
    role = raw.get("role")
    if role not in ROLES:
        return named("data.role", where, f"unknown role {role!r}", wanted=f"one of {', '.join(ROLES)}")
    if len(raw) == 2 and isinstance(raw.get("content"), str) and raw["content"].strip():
        return Message(role, raw["content"])  # by far the most turns have nothing else to look at
    calls = _calls(raw.get("tool_calls"), role, where)
    if isinstance(calls, Problem):
        return calls
    if problem := _bad_content(raw, bool(calls), where) or _bad_extras(raw, where):
        return problem
    content, weight = raw.get("content") or "", raw.get("weight")
    more = {key: raw.get(key) or "" for key in ("tool_call_id", "name")}
    return Message(role, content, weight=0 if weight == 0 else 1, tool_calls=calls, **more)


def _bad_content(raw: Json, calls: bool, where: str) -> Problem | None:
    content = raw.get("content")
    if content is None and calls:
        return None
    if not isinstance(content, str):
        return named("data.not-text", where, f"content is not text but {type(content).__name__}", wanted="a string")
    if raw["role"] == "assistant" and not calls and not content.strip():
        what = "the assistant's turn is empty"
        return named("data.empty-answer", where, what, remedy="write it or delete the line")
    return None


def _bad_extras(raw: Json, where: str) -> Problem | None:
    weight = raw.get("weight")
    if weight is not None and (type(weight) is not int or weight not in (0, 1)):
        what = f"weight is {weight!r}"
        return named("data.weight", where, what, wanted="0 (not learnt) or 1", remedy="correct it, or leave it out")
    if weight == 1 and raw["role"] != "assistant":
        what = f"weight 1 is on a turn of the role {raw['role']}, which is never learnt"
        return named("data.weight", where, what, wanted="weight on assistant turns alone", remedy="leave it out")
    for key in ("tool_call_id", "name"):
        if not isinstance(raw.get(key), str | None):
            return named("data.not-text", where, f"{key} is not text but {type(raw[key]).__name__}", wanted="a string")
    if key := next((key for key in REASONING if raw.get(key)), ""):
        remedy = "write it into content as the model's template does, or delete it"
        return named("data.reasoning", where, f"`{key}` stands beside the content", wanted="content", remedy=remedy)
    return None


def _calls(value: Any, role: str, where: str) -> tuple[Json, ...] | Problem:
    """Tool calls in OpenAI's shape, the arguments as an object: templates write them as JSON themselves."""
    if not value and (value is None or isinstance(value, list)):
        return ()
    if role != "assistant" or not isinstance(value, list):
        what = f"tool_calls on a turn of the role {role}" if role != "assistant" else "tool_calls is not a list"
        return named("data.tool-call", where, what, wanted="a list, on an assistant's turn")
    calls = [_call(item) for item in value]
    if None in calls:
        what = f"tool call {calls.index(None) + 1} has no name, or arguments that are no object"
        wanted = '{"function": {"name": "...", "arguments": {...}}}'
        return named("data.tool-call", where, what, wanted=wanted)
    return tuple(call for call in calls if call)


def _call(raw: Any) -> Json | None:
    function = raw.get("function", raw) if isinstance(raw, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        return None
    arguments = parsed(function.get("arguments") or {})
    if not isinstance(arguments, dict):
        return None
    named_by = {"id": raw["id"]} if isinstance(raw.get("id"), str) else {}
    return {"type": "function", **named_by, "function": {"name": function["name"], "arguments": arguments}}


def _tools(value: Any, where: str) -> tuple[Json, ...] | Problem:
    tools = parsed(value or [])
    if not isinstance(tools, list) or not all(isinstance(tool_name(item), str) for item in tools):
        wanted = '[{"type": "function", "function": {"name": "...", "parameters": {...}}}]'
        return named("data.tools", f"{where}: tools", "not a list of tools that each have a name", wanted=wanted)
    return tuple(tools)


def tool_name(tool: Any) -> Any:
    """The name of a tool, in OpenAI's shape or bare; None when it has none."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None


def parsed(value: Any) -> Any:
    """JSON that was written as text, as OpenAI's arguments are and tools in tables; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None
