"""One part of a data set: its lines parsed, encoded and written to one file, committed by rename.

`python -m trackbed.data.chat.part MODEL` is a worker of `trackbed.data.chat.pool`: a task a line on standard input,
what came of it a line on standard output, until the input ends. It loads the tokenizer and nothing of torch.
"""

from __future__ import annotations

import gc
import hashlib
import io
import json
import os
import signal
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from trackbed import folders
from trackbed.data.chat import jsonl, lines
from trackbed.data.chat.encode import Dropped, Sample, attempt, fit, load_tokenizer
from trackbed.data.chat.fingerprint import changed
from trackbed.data.chat.formats import Format
from trackbed.data.chat.turns import Conversation
from trackbed.data.config import DataConfig
from trackbed.errors import DataError, ModelError, Problem, TrackbedError

# Lines, and bytes of them, that are encoded in one call: enough for the call to cost nothing, few enough to hold.
GROUP = 256
GROUP_BYTES = lines.MIB
SMALL_VOCABULARY = 1 << 16
Arrays = dict[str, npt.NDArray[Any]]
Line = tuple[int, int, bytes]
"""A line's number, the byte it begins at, and the line."""


@dataclass(frozen=True)
class Task:
    """Bytes start to end of a file, of which `line` is the first line; lines before `begins` are not looked at."""

    index: int
    file: int
    path: str
    start: int
    end: int
    line: int
    begins: int
    sha256: str
    format: str
    max_length: int = 0
    too_long: str = ""
    target: str = ""
    """The file to write; without one the lines are only looked at."""
    most: int = jsonl.MOST_PROBLEMS
    """Faults that are kept of the part."""


@dataclass
class Made:
    """What came of a part. Of the faults only the first are kept, and all are counted, by id."""

    index: int
    samples: int = 0
    tokens: int = 0
    supervised: int = 0
    truncated: int = 0
    dropped: int = 0
    dtype: str = ""
    kinds: dict[str, int] = field(default_factory=dict)
    faults: list[Problem] = field(default_factory=list)

    @property
    def fault_count(self) -> int:
        return sum(self.kinds.values())

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Made:
        values = json.loads(text)
        return cls(**{**values, "faults": [Problem(**fault) for fault in values["faults"]]})


def make(task: Task, tokenizer: Any) -> Made:
    """Encode a part and write it, unless it has faults. DataError when its bytes are others than they were."""
    work = _Work(task, tokenizer)
    for group in _groups(_lines(task)):
        work.add(group)
    made = work.result()
    if not made.faults:
        with writing(Path(task.target).parent):
            folders.replace(Path(task.target), _packed({**work.arrays(), "made": _text(made.to_json())}))
    return made


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Says of an OSError that the cache cannot be written, as DataError (data.cache-write)."""
    try:
        yield
    except OSError as error:
        what = f"the cache cannot be written: {error.strerror}"
        remedy = "free some space, or set TRACKBED_CACHE to another disk; what is done is kept for the next try"
        raise DataError(Problem(id="data.cache-write", where=str(folder), what=what, remedy=remedy)) from error


def read(path: Path) -> tuple[Made, Arrays] | None:
    """A part that was written before: what came of it, and its arrays. None when it is not whole (each array has its
    checksum)."""
    try:
        with path.open("rb") as file, np.load(file) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return Made.from_json(arrays.pop("made").tobytes()), arrays


def limits(max_length: int, too_long: str) -> DataConfig:
    """What `encode.fit` needs of a job's data section."""
    return DataConfig.model_validate({"train": "", "heldout": "", "max_length": max_length, "too_long": too_long})


def scan(task: Task) -> Made:
    """Look at the lines of a part and encode nothing; `samples` are the good ones."""
    reader, made = _Reader(task), Made(task.index)
    for number, _, raw in _lines(task):
        item = reader.parse(number, raw)
        if isinstance(item, Problem):
            reader.fault(item)
        made.samples += isinstance(item, Conversation)
    made.kinds, made.faults = dict(reader.kinds), reader.faults
    return made


class _Reader:
    """Parses lines, and keeps what is wrong with them."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.kinds: Counter[str] = Counter()
        self.faults: list[Problem] = []

    def parse(self, number: int, raw: bytes) -> Conversation | Problem | None:
        """What a line holds; None for a blank one, and for one that is a fault already."""
        if number < self.task.begins or not raw.strip():
            return None
        where = f"{self.task.path}:{number}"
        return jsonl.parse(raw, where, Format(self.task.format), first=number == 1)

    def fault(self, problem: Problem) -> None:
        self.kinds[problem.id] += 1
        if len(self.faults) < self.task.most:
            self.faults.append(problem)


class _Work(_Reader):
    """Gathers the samples of a part."""

    def __init__(self, task: Task, tokenizer: Any) -> None:
        super().__init__(task)
        self._tokenizer = tokenizer
        self._config = limits(task.max_length, task.too_long)
        self._made = Made(task.index, dtype="uint16" if len(tokenizer) <= SMALL_VOCABULARY else "uint32")
        self._ids: list[npt.NDArray[Any]] = []
        self._supervised: list[npt.NDArray[np.uint8]] = []
        self._rows: dict[str, list[Any]] = {"lengths": [], "targets": [], "lines": [], "dropped": []}

    def add(self, group: Sequence[Line]) -> None:
        items = [(number, offset, self.parse(number, raw)) for number, offset, raw in group]
        conversations = (item for _, _, item in items if isinstance(item, Conversation))
        encoded = attempt(conversations, self._tokenizer)
        for number, offset, item in items:
            if item:
                result = item if isinstance(item, Problem) else self._fit(next(encoded))
                self._take(result, (self.task.file, number, offset))

    def _fit(self, item: Sample | Problem) -> Sample | Dropped | Problem:
        fitted = item if isinstance(item, Problem) else fit(item, self._config)
        self._made.truncated += isinstance(fitted, Sample) and fitted is not item
        return fitted

    def result(self) -> Made:
        lengths, made = self._rows["lengths"], self._made
        made.samples, made.tokens, made.dropped = len(lengths), sum(lengths), len(self._rows["dropped"])
        made.supervised = sum(int(part.sum()) for part in self._supervised)
        made.kinds, made.faults = dict(self.kinds), self.faults
        return made

    def arrays(self) -> Arrays:
        return {
            "ids": np.concatenate([np.zeros(0, self._made.dtype), *self._ids]),
            "supervised": np.concatenate([np.zeros(0, np.uint8), *self._supervised]),
            "lengths": np.array(self._rows["lengths"], dtype=np.int64),
            "targets": np.array(self._rows["targets"], dtype=np.int64),
            "lines": np.array(self._rows["lines"], dtype=np.int64).reshape(-1, 3),
            "dropped": np.array(self._rows["dropped"], dtype=np.int64).reshape(-1, 4),
        }

    def _take(self, item: Sample | Dropped | Problem, place: tuple[int, int, int]) -> None:
        if isinstance(item, Problem):
            self.fault(item)
        elif isinstance(item, Dropped):
            self._rows["dropped"].append((*place[:2], item.tokens, item.needs))
        else:
            self._ids.append(item.ids.astype(self._made.dtype))
            self._supervised.append(item.supervised.astype(np.uint8))
            targets = int(np.count_nonzero(item.supervised[1:]))
            for name, value in (("lengths", len(item.ids)), ("targets", targets), ("lines", place)):
                self._rows[name].append(value)


def _lines(task: Task) -> Iterator[Line]:
    """The lines of a part. DataError at its end when its hash is not the one that it had."""
    sha256 = hashlib.sha256()
    number, offset = task.line, task.start
    with Path(task.path).open("rb") as file:
        file.seek(task.start)
        while offset < task.end and (raw := file.readline(lines.LONGEST + 1)):
            sha256.update(raw)
            begins, rest = offset, raw
            offset += len(raw)
            while not rest.endswith(b"\n") and offset < task.end and (rest := file.readline(lines.MIB)):
                sha256.update(rest)
                offset += len(rest)
            yield number, begins, raw
            number += 1
    if sha256.hexdigest() != task.sha256:
        raise changed(Path(task.path))


def _groups(numbered: Iterator[Line]) -> Iterator[list[Line]]:
    group: list[Line] = []
    size = 0
    for line in numbered:
        group.append(line)
        size += len(line[2])
        if len(group) == GROUP or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    yield group


def _packed(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _text(text: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def _serve(model: Path, answers: TextIO) -> None:
    tokenizer = None
    for line in sys.stdin:
        task = Task(**json.loads(line))
        try:
            if task.target and tokenizer is None:
                tokenizer = _loaded(model)
            answer = (make(task, tokenizer) if task.target else scan(task)).to_json()
        except TrackbedError as error:
            kind = "model" if isinstance(error, ModelError) else "data"
            answer = json.dumps({"error": kind, "problems": [asdict(problem) for problem in error.problems]})
        answers.write(answer + "\n")
        answers.flush()


def _loaded(model: Path) -> Any:
    """The tokenizer. What it consists of is never garbage, and to look for garbage seldom saves a tenth of the time."""
    tokenizer = load_tokenizer(model)
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    return tokenizer


if __name__ == "__main__":
    # Ctrl-C reaches the whole group: the parent says what happened, and its workers see their input end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever a library prints must not be read as an answer.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as real:
        os.dup2(2, 1)
        _serve(Path(sys.argv[1]), real)
