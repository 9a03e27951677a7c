"""How looked-at data is shown on a terminal: in colours there, with marks in a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from trackbed.data.inspection.preview import Preview, Shown
    from trackbed.data.inspection.shown import Piece

LEARNT = ("#06210f on #7ddf9a", "#06210f on #a9edbb")
PLAIN = ("#1c2128 on #d0d5dc", "#1c2128 on #e6e9ee")
BAR = 40
EIGHTHS = " ▏▎▍▌▋▊▉█"
SHOWN = 10


def show_preview(view: Preview, console: Console) -> None:
    colours = console.is_terminal and not console.no_color and console.color_system is not None
    _say(console, f"{view.part}: {len(view.samples)} of {view.of} samples")
    console.print(legend(colours), soft_wrap=True)
    for sample in view.samples:
        _show_sample(sample, sample.where, console, colours)
    if view.row:
        _say(console, f"\na packed row: {view.row.about}")
        for number, sample in enumerate(view.row.samples, start=1):
            _show_sample(sample, f"{number}. {sample.where}", console, colours)
        if view.row.padding:
            _say(console, f"\npadding: {view.row.padding} tokens, not learnt")


def _show_sample(sample: Shown, title: str, console: Console, colours: bool) -> None:
    from trackbed.data.inspection.shown import marked

    _say(console, f"\n{title}\n  {sample.about}")
    console.print(coloured(sample.pieces) if colours else Text(marked(sample.pieces)), soft_wrap=True, highlight=False)


def legend(colours: bool) -> Text:
    signs = "· space, ↵ newline, → tab, ⋯ part of a character"
    if not colours:
        return Text(f"⟦learnt⟧ not learnt, │ between tokens, {signs}")
    return Text.assemble(("learnt", LEARNT[0]), " ", ("not learnt", PLAIN[0]), f"  shades change with tokens, {signs}")


def coloured(pieces: Sequence[Piece]) -> Text:
    """What is learnt on green, the rest on grey; the shade changes from token to token."""
    text = Text()
    for piece in pieces:
        shade = (LEARNT if piece.learnt else PLAIN)[piece.position % 2]
        text.append(piece.shown, f"{shade} bold" if piece.special else shade)
    return text


def show_stats(found: dict[str, Any], console: Console) -> None:
    for name, part in found["parts"].items():
        for line in _part_lines(name, part):
            _say(console, line)
    for each in found["findings"]:
        for line in _finding_lines(each):
            _say(console, line)
    if not found["findings"]:
        _say(console, "nothing to look at: no duplicates, no leaks")


def _part_lines(name: str, part: dict[str, Any]) -> Iterator[str]:
    if "lengths" not in part:
        yield from _labelled_lines(name, part)
        return
    yield (
        f"{name}: {part['samples']:,} samples, {part['tokens']:,} tokens, {part['supervised_tokens']:,} supervised "
        f"({part['supervised_share']:.1%}); {part['dropped']} dropped, {part['truncated']} truncated"
    )
    roles = ", ".join(f"{role} {count:,}" for role, count in part["roles"].items())
    yield f"  turns  {_quantiles(part['turns'])}; {roles}"
    yield f"  tokens {_quantiles(part['lengths'])}"
    yield from (f"    {line}" for line in bars(part["lengths"]["histogram"], part["packing"]["row_length"]))
    packing = part["packing"]
    packed = ", ".join(f"{each['row_length']}: {each['padding']:.1%}" for each in packing["packed"])
    unpacked = packing["unpacked"]
    yield f"  padding packed into rows of {packed or 'no width: the longest sample is longer'}"
    yield f"  padding unpacked, {unpacked['rows_at_once']} at once: {unpacked['padding']:.1%}"
    yield ""


def _labelled_lines(name: str, part: dict[str, Any]) -> Iterator[str]:
    yield f"{name}: {part['samples']:,} samples of {len(part['classes'])} classes; {len(part['left_out'])} left out"
    yield f"  bytes {_quantiles(part['bytes'])}"
    if part["sizes"]:
        yield "  size  " + ", ".join(f"{each['size']}: {each['samples']}" for each in part["sizes"])
    most = max([each["samples"] for each in part["classes"]], default=1)
    for each in part["classes"]:
        yield f"    {each['name']:>20} {each['samples']:>7,} {bar(each['samples'] / most)}"
    yield from (f"  left out: {line}" for line in part["left_out"][:SHOWN])
    yield ""


def _quantiles(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {values[name]}" for name in ("min", "median", "mean", "p95", "p99", "max"))


def bars(histogram: Sequence[dict[str, int]], row_length: int) -> Iterator[str]:
    """A line a bar of the histogram; the one that the row's length lies in is marked."""
    most = max(each["samples"] for each in histogram)
    for each in histogram:
        mark = f"  <- row of {row_length}" if each["from"] <= row_length <= each["to"] else ""
        yield f"{each['from']:>6} to {each['to']:<6} {each['samples']:>9,} {bar(each['samples'] / most)}{mark}"


def bar(share: float) -> str:
    """A bar of that share of 40 columns, to an eighth of one; what is there at all is seen."""
    eighths = max(round(share * BAR * 8), 1) if share else 0
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _finding_lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"{found['id']}: {found['what']}"
    yield f"  means: {found['means']}"
    yield f"  mend:  {found['remedy']}"
    for pair in found["named"][:SHOWN]:
        share = "" if pair["similarity"] == 1 else f" ({pair['similarity']:.0%})"
        yield f"  {pair['where']} is like {pair['same_as']}{share}: {_safe(pair['text'])}"
    if found["named"] and found["count"] > len(found["named"]):
        yield f"  and {found['count'] - len(found['named'])} more"


def _safe(text: str) -> str:
    """Text from the data, without what a terminal would obey."""
    return "".join(character if character.isprintable() else "�" for character in text)


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
