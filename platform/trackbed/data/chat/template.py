"""A conversation as the model's chat template writes it, and where in that text the assistant's turns are.

The mask is made by construction. The whole conversation is rendered once, and so are its beginnings: up to an
assistant's turn with the generation prompt, which is what the model is given when it is used, and up to the end of that
turn. Both must be beginnings of the whole, so the turn is what lies between. It is never found by searching for ids or
words: an answer may hold any of them, and in many models the padding token is the end token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from trackbed.data.chat.lines import named
from trackbed.data.chat.turns import Conversation, Json, Message, tool_name
from trackbed.errors import DataError, ModelError, Problem, TrackbedError

Span = tuple[int, int]
# What stands for a content while it is looked for: letters and digits alone, so that no template escapes it.
MARK = "trackbedmark{}x"


@dataclass(frozen=True)
class Rendered:
    """The text of a conversation and its supervised spans: characters, [begin, end), in order, apart."""

    text: str
    spans: tuple[Span, ...]
    where: str


class Template:
    """A tokenizer's chat template, compiled once."""

    def __init__(self, tokenizer: Any) -> None:
        from transformers.utils.chat_template_utils import _compile_jinja_template as compiled

        # transformers' own sandbox and filters, without what it does anew for every conversation; a test holds that the
        # text is the same. A tokenizer may have a second template for tools.
        self._plain = _quick(compiled(tokenizer.get_chat_template()))
        self._with_tools = _quick(compiled(tokenizer.get_chat_template(tools=[{}])))
        self._eos = tokenizer.eos_token or ""
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special} | {self._eos}
        self._ends = tuple(special - {""})
        # How turns were seen to look: what is written before the content, whether that is stripped, and what ends it.
        self.shapes: set[tuple[str, bool, str]] = set()
        self._fixed = {**self._plain.globals, **tokenizer.special_tokens_map, "documents": None}

    def rendered(self, conversation: Conversation) -> Rendered | Problem:
        """The text and the spans of every turn that is learnt, or why they cannot be told apart."""
        try:
            return self._rendered(conversation)
        except TrackbedError as error:
            return error.problems[0]

    def prompt(self, conversation: Conversation, turns: int) -> str:
        """What the model is given to continue after the first `turns` turns. Raises DataError."""
        return _Rendering(self, conversation).text(turns, generate=True)

    def _rendered(self, conversation: Conversation) -> Rendered:
        rendering = _Rendering(self, conversation)
        text = rendering.text(len(conversation.messages))
        rendering.check_all_is_there(text)
        learnt = (index for index, message in enumerate(conversation.messages) if message.learnt)
        return Rendered(text, tuple(rendering.span(text, index) for index in learnt), conversation.where)

    def render(self, turns: Sequence[Json], tools: Sequence[Json], *, generate: bool) -> str:
        """The text of some turns. Raises what the template raises."""
        template = self._with_tools if tools else self._plain
        values = {"messages": turns, "tools": list(tools) or None, "add_generation_prompt": generate}
        context = template.new_context({**self._fixed, **values}, shared=True)
        return str(template.environment.concat(template.root_render_func(context)))

    def without_closing(self, text: str) -> str:
        """Without the end-of-text token that some templates put after any last turn."""
        return text.removesuffix(self._eos) if self._eos else text

    def ended(self, answer: str) -> str:
        """An assistant's turn up to its end tokens; empty when it has none."""
        answer = answer.rstrip()
        last = next((end for end in self._ends if answer.endswith(end)), "")
        unclosed = answer.removesuffix(last)
        # What follows the end token on a line of its own is the closing, not the turn.
        if (turn := unclosed.rstrip()) != unclosed and turn.endswith(self._ends):
            return turn
        return answer if last else ""


class _Rendering:
    """One conversation in the course of being rendered."""

    def __init__(self, template: Template, conversation: Conversation) -> None:
        self._template, self._conversation = template, conversation
        self._turns = [message.turn() for message in conversation.messages]

    def text(self, turns: int, *, generate: bool = False) -> str:
        return self._render(self._turns[:turns], self._conversation.tools, generate=generate)

    def _render(self, turns: Sequence[Json], tools: Sequence[Json], *, generate: bool = False) -> str:
        try:
            return self._template.render(turns, tools, generate=generate)
        # The last four are what the expressions of a template raise on a turn that it was not written for.
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            what = f"the model's chat template refuses the conversation: {error}"
            raise DataError(named("data.template", self._conversation.where, what)) from error

    def span(self, whole: str, index: int) -> Span:
        """Where turn `index` is learnt: its content and its end tokens, without the newline after."""
        before = self.text(index, generate=True)
        start = len(before) if whole.startswith(before) else self._header(whole, index)
        last = index == len(self._turns) - 1
        # The prompt and the next prompt are beginnings of the whole, so this turn is where it is seen to be.
        if not last and (end := self._seen(whole, start, index)):
            return start, end
        turn = self._template.ended(self._beginning(whole, index + 1)[start:])
        content = self._turns[index]["content"].rstrip()
        # A content may end like an end token, but then the template's own must follow.
        if not turn or (content and turn.endswith(content)):
            wanted = "a template whose assistant turns end with a special token; without one the model never stops"
            raise self._refused("model.template-no-end", f"no special token ends {_turn(index)}", wanted)
        if not last:
            self._template.shapes |= _shapes(turn, self._turns[index]["content"])
        return start, start + len(turn)

    def _seen(self, whole: str, start: int, index: int) -> int:
        """The end of a turn that looks like those whose ends were worked out before; 0 when it does not."""
        content = self._turns[index]["content"]
        if "tool_calls" not in self._turns[index]:
            for lead, stripped, end in self._template.shapes:
                turn = f"{lead}{content.strip() if stripped else content}{end}"
                if whole.startswith(turn, start):
                    return start + len(turn)
        return 0

    def _beginning(self, whole: str, turns: int) -> str:
        """The text of the first turns, which must be a beginning of the whole."""
        if turns == len(self._turns):
            return whole
        text = self.text(turns)
        for beginning in (text, self._template.without_closing(text)):
            if whole.startswith(beginning):
                return beginning
        raise self._inseparable("the chat template rewrites earlier turns, so what is learnt cannot be told apart")

    def _header(self, whole: str, index: int) -> int:
        """Where the content begins, by its header: some templates write into the generation prompt what they leave out
        of a finished turn."""
        after, content, mark = self._beginning(whole, index + 1), self._turns[index]["content"], MARK.format(0)
        begun = self._beginning(after, index)
        marked = self._render([*self._turns[:index], {**self._turns[index], "content": mark}], self._conversation.tools)
        header, found, rest = marked.partition(mark)
        if not found or mark in rest or not (header.startswith(begun) and after.startswith(header)):
            raise self._inseparable(f"the generation prompt is no beginning of {_turn(index)}, nor is another found")
        if not after[len(header) :].startswith((content, content.strip())):
            raise self._inseparable(f"the chat template rewrites the content of {_turn(index)}")
        return len(header)

    def check_all_is_there(self, whole: str) -> None:
        """Raises DataError when the template leaves something out, which would be trained as if it had not been."""
        messages, tools = self._conversation.messages, self._conversation.tools
        if not tools and all(map(_is_plain, messages)) and _in_order(messages, whole):
            return
        marks = _Marks()
        marked_tools = [_marked_tool(tool, marks) for tool in tools]
        turns = [_marked(message, index, marks) for index, message in enumerate(messages)]
        text = self._render(turns, marked_tools)
        if missing := [what for mark, what in marks.items() if mark not in text]:
            kind = "turn" if all(what.endswith("the content") for what in missing) else "tools"
            raise DataError(
                named(
                    f"data.{kind}-not-rendered",
                    self._conversation.where,
                    f"the model's chat template leaves out or rewrites {', '.join(missing[:4])}",
                    wanted="a template that writes everything the data has",
                    remedy="use a model whose template knows such turns, or take them out of the data",
                )
            )

    def _inseparable(self, what: str) -> ModelError:
        wanted = "a template that renders n turns as a beginning of n+1 turns, or weight 0 on all turns but the last"
        return self._refused("model.template-inseparable", what, wanted)

    def _refused(self, id: str, what: str, wanted: str) -> ModelError:
        return ModelError(named(id, self._conversation.where, what, wanted=wanted))


class _Marks(dict[str, str]):
    """Marks, and what each stands for."""

    def mark(self, what: str) -> str:
        name = MARK.format(len(self))
        self[name] = what
        return name


def _shapes(turn: str, content: str) -> set[tuple[str, bool, str]]:
    """How a turn looks, when it is its content, perhaps after a space, and an end."""
    for stripped, text in ((False, content), (True, content.strip())):
        at = turn.find(text) if text else -1
        lead, end = turn[:at], turn[at + len(text) :]
        if at >= 0 and end and not lead.strip():
            return {(lead, stripped, end)}
    return set()


def _turn(index: int) -> str:
    return f"message {index + 1}"


def _in_order(messages: Sequence[Message], whole: str) -> bool:
    """Whether every content stands behind those before it: one alone may stand inside another."""
    at = 0
    for message in messages:
        content = message.content.strip()
        if (found := whole.find(content, at)) < 0:
            return False
        at = found + len(content)
    return True


def _is_plain(message: Message) -> bool:
    return not message.tool_calls and message.role != "tool"


def _marked(message: Message, index: int, marks: _Marks) -> Json:
    what = f"{_turn(index)}: "
    turn = message.turn()
    if message.content.strip():
        of = "the tool's result" if message.role == "tool" else "the content"
        turn["content"] = marks.mark(what + of)
    if message.tool_calls:
        turn["tool_calls"] = [_marked_call(call, what, marks) for call in message.tool_calls]
    return turn


def _marked_call(call: Json, what: str, marks: _Marks) -> Json:
    function = call["function"]
    arguments = {name: marks.mark(f"{what}the argument {name}") for name in function["arguments"]}
    return {**call, "function": {"name": marks.mark(f"{what}the tool call"), "arguments": arguments}}


def _marked_tool(tool: Json, marks: _Marks) -> Json:
    name = marks.mark(f"the tool {tool_name(tool)}")
    return {**tool, "function": {**tool["function"], "name": name}} if "function" in tool else {**tool, "name": name}


def _quick(template: Any) -> Any:
    """Have the sandbox decide once for every attribute of every type: its rule looks at nothing else, and a template
    asks it thousands of times."""
    if "is_safe_attribute" in vars(template.environment):  # compiled before: transformers keeps what it compiles
        return template
    rule = template.environment.is_safe_attribute
    known: dict[tuple[type, str], bool] = {}

    def decided(owner: Any, name: str, value: Any) -> bool:
        key = type(owner), name
        if key not in known:
            known[key] = rule(owner, name, value)
        return known[key]

    template.environment.is_safe_attribute = decided
    return template
