"""Where the samples of a shard begin: found once, kept in the cache, so that any of them is one read away."""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trackbed import folders
from trackbed.data.samples.sources import digest, stamp

VERSION = "2"


@dataclass(frozen=True)
class Index:
    """Of one shard: the names of its samples and, int64 [samples, columns], where their parts lie."""

    names: Sequence[str]
    spans: npt.NDArray[np.int64]


def index(shard: Path, kind: str, build: Callable[[Path], Index]) -> Index:
    """The shard's index, from the cache unless the shard was changed or replaced. Raises what build does.

    kind: everything that an index depends on but the shard.
    """
    key = digest([VERSION, kind, stamp([shard])])
    kept = folders.data() / "index" / f"{key}.npz"
    if found := _known(kept):
        return found
    made = build(shard)
    # A cache that cannot be written to costs time, not the run.
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        folders.replace(kept, _bytes(made))
    return made


def _known(kept: Path) -> Index | None:
    """None for an index that is not there, or damaged."""
    try:
        with kept.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return Index(_names(arrays["names"]), arrays["spans"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _bytes(made: Index) -> bytes:
    file = io.BytesIO()
    names = np.frombuffer("\n".join(made.names).encode(errors="surrogateescape"), dtype=np.uint8)
    np.savez(file, names=names, spans=made.spans)
    return file.getvalue()


def _names(encoded: npt.NDArray[np.uint8]) -> list[str]:
    return encoded.tobytes().decode(errors="surrogateescape").split("\n") if encoded.size else []
