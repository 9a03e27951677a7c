"""A JSONL file as lines, and a line as one JSON value: bounded memory, and every fault with its file and line.

Standard library only, and nothing that Python 3.10 lacks.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from trackbed.errors import Problem

MIB = 2**20
# A line is one sample and is held whole; no sample of text is longer, but a file without newlines is.
LONGEST = 64 * MIB
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
HALF = re.compile("[\ud800-\udfff]")


def numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, with their numbers from 1.

    Of a line longer than LONGEST bytes only the beginning is given, one byte more than LONGEST. Raises OSError.
    """
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(LONGEST + 1):
            number += 1
            if len(raw) > LONGEST:
                _skip_line(file, raw)
            if raw.strip():
                yield number, raw


def _skip_line(file: BinaryIO, raw: bytes) -> None:
    while raw and not raw.endswith(b"\n"):
        raw = file.readline(MIB)


def value(raw: bytes, where: str, *, first: bool = False) -> Any:
    """The JSON value of a line; a Problem when it has none. `first` says that it is the first line of its file."""
    if problem := _bad_bytes(raw, where, first=first):
        return problem
    try:
        found = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        return _not_utf8(raw, where, error)
    except json.JSONDecodeError as error:
        return _cut_or_broken(raw, where, error)
    except _DuplicateKey as error:
        what = f"the key {error.args[0]!r} is there twice in one object"
        return named("data.duplicate-key", where, what, wanted="each key once: readers differ in which they take")
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return named("data.not-json", where, f"the line is not JSON: {reason}", remedy="mend the line")
    return _half_character(raw, found, where) or found


def _bad_bytes(raw: bytes, where: str, *, first: bool) -> Problem | None:
    if len(raw) > LONGEST:
        what = f"the line is longer than {LONGEST // MIB} MiB"
        return named("data.long-line", where, what, wanted="one sample a line", remedy="split it, or delete the line")
    if raw.startswith(codecs.BOM_UTF8) or (first and raw.startswith(UTF16)):
        return _mark(raw, where, "file" if first else "line")
    if b"\0" in raw:
        return named(
            "data.nul",
            where,
            f"byte {raw.index(0) + 1} of the line is NUL",
            wanted="UTF-8 text",
            remedy="copy the file again: a crash leaves a hole, and UTF-16 text joined to UTF-8 looks like this too",
        )
    return None


def _mark(raw: bytes, where: str, of: str) -> Problem:
    if raw.startswith(UTF16):
        what, remedy = f"the {of} begins with a byte-order mark of UTF-16", "iconv -f UTF-16 -t UTF-8 FILE > NEW"
    else:
        # In the middle of a file it comes from files that were joined.
        what, remedy = f"the {of} begins with a byte-order mark", "sed -i 's/^\\xEF\\xBB\\xBF//' FILE"
    return named("data.bom", where, what, wanted="UTF-8 without a BOM", remedy=remedy)


def _not_utf8(raw: bytes, where: str, error: UnicodeDecodeError) -> Problem:
    return named(
        "data.not-utf8",
        where,
        f"byte {error.start + 1} of the line is not UTF-8 (0x{raw[error.start]:02x})",
        wanted="UTF-8 text",
        remedy="iconv -f LATIN1 -t UTF-8 FILE > NEW, if that is what all of it was written in",
    )


def _cut_or_broken(raw: bytes, where: str, error: json.JSONDecodeError) -> Problem:
    cut = not raw.endswith(b"\n") or error.pos >= len(raw.decode("utf-8").rstrip())
    what = "the line is cut off" if cut else "the line is not JSON"
    return named(
        "data.cut" if cut else "data.not-json",
        where,
        f"{what}: {error.msg} at character {error.pos + 1}",
        wanted="one whole JSON object a line",
        remedy="write the file again; a partial copy or a full disk leaves such a line" if cut else "mend the line",
    )


class _DuplicateKey(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _DuplicateKey(next(name for name in names if names.count(name) > 1))
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _half_character(raw: bytes, found: Any, where: str) -> Problem | None:
    # UTF-8 cannot hold half a character, so it can only have come from an escape.
    if (b"\\ud" in raw or b"\\uD" in raw) and (place := _place_of_half(found)):
        what = f"{place} has half a character (a lone surrogate)"
        return named("data.not-text", where, what, wanted="whole text", remedy="write that sample again")
    return None


def _place_of_half(found: Any, place: str = "") -> str:
    if isinstance(found, str):
        return (place.lstrip(".") or "the line") if HALF.search(found) else ""
    if isinstance(found, dict):
        inner = [("a key", name) for name in found] + [(f"{place}.{name}", item) for name, item in found.items()]
    else:
        inner = [(f"{place}[{index}]", item) for index, item in enumerate(found)] if isinstance(found, list) else []
    return next(filter(None, (_place_of_half(item, name) for name, item in inner)), "")


def named(id: str, where: str, what: str, *, wanted: str = "", remedy: str = "") -> Problem:
    """A Problem, in the order in which it is read aloud."""
    return Problem(id=id, where=where, what=what, wanted=wanted, remedy=remedy)
