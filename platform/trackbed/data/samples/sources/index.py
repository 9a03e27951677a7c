"""Where the samples of a shard begin: found once, kept in the cache, so that any of them is one read away."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trackbed import folders
from trackbed.data.samples.sources import digest

VERSION = "1"


@dataclass(frozen=True)
class Index:
    """Of one shard: the names of its samples and, int64 [samples, columns], where their parts lie."""

    names: Sequence[str]
    spans: npt.NDArray[np.int64]


def index(shard: Path, kind: str, build: Callable[[Path], Index]) -> Index:
    """The shard's index, from the cache unless its path, size or time of change is another. Raises what build does.

    kind: everything that an index depends on but the shard.
    """
    stat = shard.stat()
    key = digest([VERSION, kind, str(shard.resolve()), str(stat.st_size), str(stat.st_mtime_ns)])
    kept = folders.data() / "index" / f"{key}.npz"
    if kept.exists():
        with np.load(kept, allow_pickle=False) as arrays:
            return Index(_names(arrays["names"]), arrays["spans"])
    made = build(shard)
    # A cache that cannot be written to costs time, not the run.
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        folders.replace(kept, _bytes(made))
    return made


def _bytes(made: Index) -> bytes:
    file = io.BytesIO()
    names = np.frombuffer("\n".join(made.names).encode(), dtype=np.uint8)
    np.savez(file, names=names, spans=made.spans)
    return file.getvalue()


def _names(encoded: npt.NDArray[np.uint8]) -> list[str]:
    return encoded.tobytes().decode().split("\n") if encoded.size else []
