"""A scan of JSONL for everything that stops a training late, or changes it silently. It reads, and keeps, one line."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from trackbed.validate import MIB, amount
from trackbed.validate.data.scan import LIMIT, Fault, Scan

SUFFIXES = {".jsonl", ".ndjson"}
LONGEST = 16 * MIB
MOST_PLACES, DEEPEST = 1000, 6
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line: from 1, its first byte from 0, its bytes (None when it is longer than is read), its length."""

    file: str
    number: int
    offset: int
    raw: bytes | None
    length: int


@dataclass(kw_only=True)
class Types:
    """The types seen at each place of a record, such as messages[].content: how often, and where first."""

    seen: dict[str, dict[str, tuple[int, Line]]] = field(default_factory=dict)

    def note(self, value: Any, line: Line, place: str = "", depth: int = 0) -> None:
        kind = _kind(value)
        if kind != "null" and (place in self.seen or len(self.seen) < MOST_PLACES):
            kinds = self.seen.setdefault(place, {})
            count, first = kinds.get(kind, (0, line))
            # The first line's text is not kept: one long line a place would not be a bound.
            kinds[kind] = (count + 1, Line(**{**vars(first), "raw": None}))
        if depth < DEEPEST:
            for name, inner in _inside(value):
                self.note(inner, line, f"{place}{name}", depth + 1)

    def drift(self) -> Iterator[Fault]:
        """A fault for every type that is not the usual one at its place."""
        for place, kinds in self.seen.items():
            usual = max(kinds, key=lambda kind: kinds[kind][0])
            for kind, (count, first) in kinds.items():
                if kind != usual:
                    what = (
                        f"{place.lstrip('.') or 'the line'} is a {kind} in {count} places, first here, and a {usual} "
                        f"in {kinds[usual][0]}"
                    )
                    yield Fault(
                        kind="type-drift",
                        file=first.file,
                        line=first.number,
                        offset=first.offset,
                        what=what,
                        remedy=f"make it a {usual} everywhere: loaders guess the type from the first lines",
                    )


def scan_jsonl(path: Path, *, limit: int = LIMIT, longest: int = LONGEST, until: float = float("inf")) -> Scan:
    """Scan a file, or every *.jsonl below a folder. Memory is bounded by `longest`, the longest line in bytes."""
    scan, types = Scan(path=path, of="lines", limit=limit, until=until), Types()
    files = files_of(path)
    if not files:
        scan.missing = f"there is no *.jsonl in {path}"
    for file in files:
        if scan.late():
            break
        scan.files += 1
        try:
            with file.open("rb") as stream:
                _scan_file(scan, types, str(file), stream, longest)
        except OSError as error:
            scan.add(Fault(kind="unreadable", file=str(file), what=f"cannot be read: {error.strerror}",
                           remedy=f"chmod u+r {file}, or correct the path"))  # fmt: skip
    for fault in types.drift():
        scan.add(fault)
    return scan


def files_of(path: Path) -> list[Path]:
    """The path itself, whatever its name, also when it is not there; of a folder, the JSONL files below it."""
    if path.is_dir():
        return sorted(each for each in path.rglob("*") if each.suffix in SUFFIXES and each.is_file())
    return [path]


def _scan_file(scan: Scan, types: Types, name: str, stream: BinaryIO, longest: int) -> None:
    before = scan.items
    for line in _lines(name, stream, longest):
        if scan.late():
            return
        scan.items += 1
        scan.bytes += line.length
        if line.number == 1 and (fault := _mark(line)):
            scan.add(fault)
            if fault.kind == "utf-16":
                return
            line = Line(**{**vars(line), "raw": (line.raw or b"")[len(codecs.BOM_UTF8) :]})
        _scan_line(scan, types, line)
    if scan.items == before:
        scan.add(Fault(kind="empty-file", file=name, what="the file is empty", remedy="write it again, or delete it"))


def _scan_line(scan: Scan, types: Types, line: Line) -> None:
    try:
        value = _parse(line)
    except _Bad as bad:
        scan.add(bad.fault)
        return
    types.note(value, line)


class _Bad(Exception):
    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.what)
        self.fault = fault


def _parse(line: Line) -> Any:
    """The line's value; _Bad with the fault."""
    raw = line.raw
    if raw is None:
        what = f"the line has {amount(line.length)}"
        raise _bad(line, 0, "huge-line", what, "split it: a line is one sample, and is held in memory whole")
    if not raw.strip():
        raise _bad(line, 0, "empty-line", "the line is empty", f"sed -i '/^[[:space:]]*$/d' {line.file}", warn=True)
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        what = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        remedy = f"iconv -f LATIN1 -t UTF-8 {line.file} > NEW, if that is what it was written in"
        raise _bad(line, error.start, "not-utf8", what, remedy) from error
    except UnicodeEncodeError as error:
        what = "a string has half a character (a lone surrogate)"
        raise _bad(line, 0, "not-text", what, "write that sample again, as whole text") from error
    except json.JSONDecodeError as error:
        raise _cut_or_broken(line, text, error) from error
    except (ValueError, RecursionError) as error:
        raise _bad(line, 0, "not-json", f"the line is not JSON: {error}", "write null, or leave it out") from error
    if not isinstance(value, dict):
        what = f"the line is a {_kind(value)}, not an object"
        raise _bad(line, 0, "not-an-object", what, "one {...} a line; a .json file becomes lines with jq -c '.[]'")
    return value


def _cut_or_broken(line: Line, text: str, error: json.JSONDecodeError) -> _Bad:
    at = len(text[: error.pos].encode())
    if not text.endswith("\n"):
        what = f"the last line is cut off: {error.msg}"
        return _bad(line, at, "cut", what, "write the file again: a full disk or a broken copy leaves such a line")
    return _bad(line, at, "not-json", f"the line is not JSON: {error.msg}", f"mend or delete line {line.number}")


def _bad(line: Line, at: int, kind: str, what: str, remedy: str, *, warn: bool = False) -> _Bad:
    return _Bad(
        Fault(
            kind=kind,
            file=line.file,
            line=line.number,
            offset=line.offset + at,
            what=what,
            remedy=remedy,
            severity="warn" if warn else "fail",
        )
    )


def _mark(line: Line) -> Fault | None:
    """The fault of a byte-order mark, which a JSON reader takes for text."""
    raw = line.raw or b""
    if raw.startswith(codecs.BOM_UTF8):
        what, kind = "the file begins with a byte-order mark", "bom"
        remedy = f"sed -i '1s/^\\xEF\\xBB\\xBF//' {line.file}"
    elif raw.startswith(UTF16):
        what, kind = "the file is UTF-16, not UTF-8", "utf-16"
        remedy = f"iconv -f UTF-16 -t UTF-8 {line.file} > NEW"
    else:
        return None
    return Fault(kind=kind, file=line.file, line=1, offset=0, what=what, remedy=remedy)


def _lines(name: str, stream: BinaryIO, longest: int) -> Iterator[Line]:
    offset, number = 0, 0
    while raw := stream.readline(longest + 1):
        number += 1
        length = len(raw)
        if len(raw) > longest and not raw.endswith(b"\n"):
            while more := stream.readline(longest):
                length += len(more)
                if more.endswith(b"\n"):
                    break
        kept = raw if length <= longest + 1 and length == len(raw) else None
        yield Line(file=name, number=number, offset=offset, raw=kept, length=length)
        offset += length


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _kind(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "list", dict: "object"}
    return names.get(type(value), "null")


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f".{name}", inner) for name, inner in value.items())
    elif isinstance(value, list):
        yield from (("[]", inner) for inner in value)
