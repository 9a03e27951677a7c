"""A chat data set from the documentation strings of the standard library, NumPy and torch.

The question names a module (and class) and says what a callable does; the answer is its dotted name. Names and
descriptions are unique over the whole set, so nothing of the held-out part occurs in training. The set is a pure
function of the installed versions: build it again under the same release and it is the same, byte for byte.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from trackbed import folders
from trackbed.data.chat.jsonl import Conversation, Message
from trackbed.errors import DataError, Problem

INSTRUCTION = "Name the Python callable that does this."
HELD_OUT_PERCENT = 6
# A description shorter than this tells nothing, a longer one is an essay; in characters.
SHORTEST, LONGEST = 20, 160
# Imported, these open a browser or a window, print, or are tests and platform files that come and go.
SKIPPED = {"antigravity", "this", "idlelib", "lib2to3", "test", "tkinter", "turtle", "turtledemo", "pydoc_data"}
LIBRARIES = {
    "NumPy": ["numpy", "numpy.linalg", "numpy.fft", "numpy.random", "numpy.ma", "numpy.char", "numpy.polynomial"],
    "torch": [
        "torch",
        "torch.nn",
        "torch.nn.functional",
        "torch.nn.init",
        "torch.linalg",
        "torch.fft",
        "torch.special",
        "torch.optim",
        "torch.optim.lr_scheduler",
        "torch.utils.data",
        "torch.distributions",
        "torch.autograd",
        "torch.distributed",
    ],
}


@dataclass(frozen=True)
class Entry:
    """One documented callable."""

    library: str
    module: str
    name: str
    description: str
    owner: str = ""
    """The class, for a method: `Return a shallow copy.` cannot be answered without it."""


def build(folder: Path, progress: Callable[[str, int, int], None]) -> dict[str, int]:
    """Write train.jsonl and heldout.jsonl; returns how many pairs each has. Raises DataError when it cannot.

    The work is done by a fresh interpreter: libraries that are already imported here change others' documentation.
    """
    command = [sys.executable, "-m", "trackbed.data.sets.pydocs", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        counts: dict[str, int] = {}
        for line in process.stdout or ():
            record = json.loads(line)
            counts = record.get("counts", counts)
            if "done" in record:
                progress("documentation", record["done"], record["total"])
        complaint = (process.stderr.read() if process.stderr else "").strip().splitlines()
    if process.returncode or not counts:
        what = f"the data set could not be built: {complaint[-1] if complaint else process.returncode}"
        raise DataError(Problem(id="data.not-built", where=str(folder), what=what))
    return counts


def collect(folder: Path) -> None:
    """What the fresh interpreter does; it reports on standard output, one JSON object a line."""

    def report(done: int, total: int) -> None:
        print(json.dumps({"done": done, "total": total}), file=sys.__stdout__, flush=True)

    parts: dict[str, list[Entry]] = {"train": [], "heldout": []}
    for entry in _unique(_entries(report)):
        parts["heldout" if _held_out(entry.name) else "train"].append(entry)
    held_out = {entry.name for entry in parts["heldout"]}
    parts["train"] = [entry for entry in parts["train"] if not _mentions(entry.description, held_out)]
    folder.mkdir(parents=True, exist_ok=True)
    for part, entries in parts.items():
        _write(folder / f"{part}.jsonl", entries)
    counts = {part: len(entries) for part, entries in parts.items()}
    print(json.dumps({"counts": counts}), file=sys.__stdout__)


def conversation(entry: Entry) -> Conversation:
    """The two turns that teach one name."""
    place = f"module {entry.module}" + (f", class {entry.owner}" if entry.owner else "")
    return Conversation(
        messages=(
            Message(role="system", content=INSTRUCTION),
            Message(role="user", content=f"{place}: {entry.description}"),
            Message(role="assistant", content=entry.name),
        ),
        source=f"docstring of {entry.name}, {entry.library}",
    )


def _write(path: Path, entries: list[Entry]) -> None:
    lines = [json.dumps(conversation(entry).to_json(), ensure_ascii=False) for entry in entries]
    folders.replace(path, "\n".join(lines) + "\n")


def _held_out(name: str) -> bool:
    """Split by the name alone, so that a new entry never moves an old one to the other part."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % 100 < HELD_OUT_PERCENT


def _mentions(text: str, names: set[str]) -> bool:
    """Whether a text gives one of the names away."""
    return any(word.strip(".") in names for word in re.findall(r"[\w.]+", text))


def _unique(entries: Iterator[Entry]) -> list[Entry]:
    """Sorted; of equal names or equal descriptions (in any case and spacing) only the first stays."""
    names: set[str] = set()
    descriptions: set[str] = set()
    kept = []
    for entry in sorted(entries, key=lambda entry: (entry.name, entry.description)):
        text = re.sub(r"\W+", " ", entry.description).strip().lower()
        if entry.name in names or text in descriptions:
            continue
        names.add(entry.name)
        descriptions.add(text)
        kept.append(entry)
    return kept


def _entries(report: Callable[[int, int], None]) -> Iterator[Entry]:
    names = [("Python", name) for name in _standard_modules()]
    names += [(library, name) for library, modules in LIBRARIES.items() for name in modules]
    for done, (library, name) in enumerate(names, start=1):
        if module := _import(name):
            yield from _module_entries(library, module)
        report(done, len(names))


def _standard_modules() -> list[str]:
    """Public modules of the standard library and the public submodules of its packages."""
    found = []
    for name in sorted(sys.stdlib_module_names):
        if name.startswith("_") or name in SKIPPED:
            continue
        module = _import(name)
        found.append(name)
        path = getattr(module, "__path__", [])
        subs = sorted(info.name for info in pkgutil.iter_modules(path, f"{name}."))
        found += [sub for sub in subs if not re.search(r"\._|\.tests?\b|\.__", sub)]
    return found


def _import(name: str) -> ModuleType | None:
    """A module, or None where this build of Python does not have it; what it prints or warns is dropped."""
    with open(os.devnull, "w") as sink, redirect_stdout(sink), redirect_stderr(sink), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except (ImportError, OSError, AttributeError, SystemExit):
            return None


def _module_entries(library: str, module: ModuleType) -> Iterator[Entry]:
    for name, item in _members(module):
        if not callable(item) or inspect.ismodule(item) or not _belongs(item, module):
            continue
        dotted = f"{module.__name__}.{name}"
        if description := _description(item):
            yield Entry(library, module.__name__, dotted, description)
        if inspect.isclass(item) and not issubclass(item, BaseException):
            yield from _method_entries(library, module, dotted, item)


def _method_entries(library: str, module: ModuleType, dotted: str, owner: type) -> Iterator[Entry]:
    for name in sorted(vars(owner)):
        item = vars(owner)[name]
        item = item.__func__ if isinstance(item, classmethod | staticmethod) else item
        if name.startswith("_") or not callable(item):
            continue
        if description := _description(item):
            yield Entry(library, module.__name__, f"{dotted}.{name}", description, owner.__name__)


def _members(module: ModuleType) -> list[tuple[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        public = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
        return [(name, getattr(module, name, None)) for name in sorted(set(public))]


def _belongs(item: Any, module: ModuleType) -> bool:
    """Whether a callable is of this library at all, and not something that was only imported."""
    home = getattr(item, "__module__", None) or module.__name__
    return home.split(".")[0].lstrip("_") == module.__name__.split(".")[0].lstrip("_")


def _description(item: Any) -> str:
    """The first paragraph of the documentation in one line; empty when it is of no use."""
    text = getattr(item, "__doc__", None)
    if not isinstance(text, str):
        return ""
    paragraphs = [" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n")]
    # C functions begin with their signature, which would give the name away.
    useful = [part for part in paragraphs if part and not re.match(r"[\w.]+\(.*\)( ->.*)?( -- .*)?$|\.\. ", part)]
    text = useful[0] if useful else ""
    return text if SHORTEST <= len(text) <= LONGEST and text.isprintable() else ""


if __name__ == "__main__":
    collect(Path(sys.argv[1]))
