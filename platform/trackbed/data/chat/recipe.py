"""What decides the token ids of a data set, and the key it is kept under."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from trackbed import folders
from trackbed.data.chat import jsonl, lines
from trackbed.data.chat.fingerprint import File, Progress, digest, fingerprint, jsonl_files
from trackbed.data.chat.formats import Format
from trackbed.data.chat.jsonl import MOST_PROBLEMS
from trackbed.data.chat.lines import named
from trackbed.data.config import DataConfig
from trackbed.errors import DataError, Problem

# Raised when the same data and settings come to other ids, or lie in other files.
LAYOUT = 1
# What a tokenizer is loaded from, in all the forms that transformers knows; weights are none of it.
TOKENIZER_FILES = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model", "*.tiktoken",
    "chat_template*", "additional_chat_templates/*",
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """A JSONL file (or folder, or pattern), the model folder whose tokenizer reads it, and what `data` says of it."""

    data: Path
    model: Path
    max_length: int
    too_long: str
    format: str = "auto"
    part_bytes: int = 0
    """About how much one piece of work is; 0: by the size of the file."""

    @classmethod
    def of(cls, data: Path, model: Path, config: DataConfig) -> Recipe:
        return cls(data, model, config.max_length, config.too_long, config.format)


@dataclass(frozen=True)
class Head:
    """The format, and where it was recognised: (file number, line). The lines before that are faults: how many of each
    id, and the first of them."""

    format: Format
    begins: tuple[int, int] = (0, 1)
    kinds: Counter[str] = field(default_factory=Counter)
    faults: list[Problem] = field(default_factory=list)


@dataclass(frozen=True)
class Ingredients:
    """A recipe with its data looked at."""

    recipe: Recipe
    files: list[File]
    head: Head

    @cached_property
    def key(self) -> str:
        recipe = self.recipe
        hashes = [digest(self.files), tokenizer_hash(recipe.model)]
        said = [*hashes, self.head.format.value, recipe.max_length, recipe.too_long, LAYOUT]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]

    @property
    def folder(self) -> Path:
        return folders.data() / "prepared" / self.key

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def gather(recipe: Recipe, progress: Progress) -> Ingredients:
    """Hash the data, or believe the index, and see its format. DataError for data that cannot be read."""
    paths = jsonl_files(recipe.data)
    files = fingerprint(paths, recipe.part_bytes, progress)
    if not any(file.size for file in files):
        raise nothing_in(recipe.data)
    head = Head(Format(recipe.format)) if recipe.format != "auto" else _recognise(recipe.data, paths)
    return Ingredients(recipe, files, head)


def tokenizer_hash(model: Path) -> str:
    """Hash of the names and bytes of everything that the model folder's tokenizer is loaded from."""
    found = sorted({path for pattern in TOKENIZER_FILES for path in model.glob(pattern) if path.is_file()})
    listed = [[str(path.relative_to(model)), folders.sha256(path)] for path in found]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def first_of(faults: Sequence[Problem], count: int, where: Path, most: int = MOST_PROBLEMS) -> list[Problem]:
    """The first faults and, when there are more, how many."""
    shown = list(faults[:most])
    return [*shown, named("data.more", str(where), f"and {count - most} more faulty lines")] if count > most else shown


def nothing_in(path: Path) -> DataError:
    return DataError(named("data.empty-file", str(path), "the file has no conversation", remedy="give it lines"))


def _recognise(data: Path, paths: Sequence[Path]) -> Head:
    """The format of the first line that shows one; DataError with all faults when there is no such line."""
    faults: list[Problem] = []
    kinds: Counter[str] = Counter()
    for number, path in enumerate(paths):
        for line, raw in lines.numbered(path):
            found = jsonl.recognised(raw, f"{path}:{line}", first=line == 1)
            if isinstance(found, Format):
                return Head(found, (number, line), kinds, faults)
            kinds[found.id] += 1
            faults += [found] if len(faults) < MOST_PROBLEMS else []
            if jsonl.hopeless(found, raw):
                raise DataError(faults)
    raise DataError(first_of(faults, kinds.total(), data)) if faults else nothing_in(data)
