"""What this site should have: a TOML file that a good node writes and every other node is held against.

`read` gives a dictionary of the shape in SECTIONS; every mistake in the file is named at once, with its line.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trackbed.errors import Problem, ValidationError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE_SCHEMA = 1
# section -> key -> (what TOML may give for it, what to call that)
COUNT, AMOUNT, TEXT = ((int,), "a whole number"), ((int, float), "a number"), ((str,), "text in quotes")
RATES = ((list,), "a list of numbers")
SECTIONS: dict[str, dict[str, tuple[tuple[type, ...], str]]] = {
    "cpu": {"count": COUNT},
    "memory": {"minimum_gib": AMOUNT},
    "shared_memory": {"minimum_gib": AMOUNT},
    "gpu": {"count": COUNT, "model": TEXT},
    "driver": {"version": TEXT},
    "rdma": {"rates_gbit_s": RATES},
    "mounts": {"path": TEXT, "file_system": TEXT, "minimum_free_gib": AMOUNT},
    # What one checkpoint of a job takes, how many stay and how far apart they are: for storage.free-space and
    # storage.write-rate. Not learned, it is the job's business.
    "checkpoint": {"bytes": COUNT, "keep": COUNT, "every_seconds": AMOUNT},
}
# Without these a section says nothing.
NEEDED = {
    "cpu": {"count"},
    "memory": {"minimum_gib"},
    "shared_memory": {"minimum_gib"},
    "gpu": {"count"},
    "driver": {"version"},
    "rdma": {"rates_gbit_s"},
    "mounts": {"path"},
    "checkpoint": {"bytes"},
}
LEARN = "trackbed validate --learn site.toml, on a good node, writes one that is right"


def read(path: Path) -> dict[str, Any]:
    """What the file expects; ValidationError with every mistake in it."""
    try:
        text = path.read_text("utf-8")
        raw = tomllib.loads(text)
    except OSError as error:
        raise ValidationError(_problem(str(path), f"cannot be read: {error.strerror}")) from error
    except UnicodeDecodeError as error:
        raise ValidationError(_problem(str(path), f"is not UTF-8 at byte {error.start}")) from error
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        raise ValidationError(_problem(f"{path}:{line[1]}" if line else str(path), f"is no TOML: {error}")) from error
    if mistakes := list(_mistakes(raw)):
        raise ValidationError([_problem(_where(path, text, *key), what, wanted) for key, what, wanted in mistakes])
    return {name: value for name, value in raw.items() if name in SECTIONS}


Mistake = tuple[tuple[str, int, str], str, str]  # (section, which of its tables, key), what is wrong, what is wanted


def _mistakes(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    version = raw.get("schema_version")
    if version != FILE_SCHEMA:
        what = "there is no schema_version" if version is None else f"schema_version is {version!r}"
        yield ("", 0, "schema_version"), what, f"schema_version = {FILE_SCHEMA}"
    for name, value in raw.items():
        if name in SECTIONS:
            yield from _section_mistakes(name, value)
        elif name != "schema_version":
            yield (name, 0, ""), f"`{name}` is unknown", _near(name, SECTIONS)
    if not SECTIONS.keys() & raw.keys():
        yield ("", 0, ""), "nothing is expected", f"one or more of {', '.join(SECTIONS)}"


def _section_mistakes(name: str, value: object) -> Iterator[Mistake]:
    wanted = f"[[{name}]], one or more tables" if name == "mounts" else f"[{name}], a table"
    tables = value if name == "mounts" and isinstance(value, list) else [value]
    for index, table in enumerate(tables):
        if not isinstance(table, dict) or (name == "mounts" and not isinstance(value, list)):
            yield (name, index, ""), f"`{name}` is {value!r}", wanted
            continue
        for key in sorted(NEEDED[name] - table.keys()):
            yield (name, index, ""), f"`{name}` has no `{key}`", f"{key} = {SECTIONS[name][key][1]}"
        for key, entry in table.items():
            yield from _entry_mistakes((name, index, key), entry)


def _entry_mistakes(key: tuple[str, int, str], entry: object) -> Iterator[Mistake]:
    shape = SECTIONS[key[0]]
    if key[2] not in shape:
        yield key, f"`{key[0]}.{key[2]}` is unknown", _near(key[2], shape)
    elif not _fits(entry, shape[key[2]][0]):
        yield key, f"`{key[0]}.{key[2]}` is {entry!r}", f"{shape[key[2]][1]}, zero or more"


def _fits(entry: object, kinds: tuple[type, ...]) -> bool:
    """The type, and no negative number, no empty text, nothing that is not a number in a list of them."""
    if isinstance(entry, bool) or not isinstance(entry, kinds):
        return False
    if isinstance(entry, list):
        return all(_fits(each, (int, float)) for each in entry)
    return bool(entry) if isinstance(entry, str) else isinstance(entry, int | float) and 0 <= entry < float("inf")


def _near(word: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean `{close[0]}`?" if close else f"one of {', '.join(known)}"


def _where(path: Path, text: str, section: str, index: int, key: str) -> str:
    """The file, and the line of the section's key as far as it can be found: a TOML reader keeps no lines."""
    inside, seen = not section, -1
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\[?\s*([\w-]+)\s*\]\]?", line)
        if header:
            seen += header[1] == section
            inside = header[1] == section and seen == index
            if inside and not key:
                return f"{path}:{number}"
        elif (inside or not key) and re.match(rf"\s*[\"']?{re.escape(key or section or '=')}[\"']?\s*=", line):
            return f"{path}:{number}"
    return str(path)


def _problem(where: str, what: str, wanted: str = "") -> Problem:
    return Problem(id="validate.expectations", where=where, what=what, wanted=wanted, remedy=LEARN)
