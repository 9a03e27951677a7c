"""A checkpoint is committed, or it does not exist.

Written under a temporary name; every file hashed into a manifest; synced; renamed when all ranks agree; and only then
named by `latest`. On load every file is held against the manifest before anything is unpickled, and all ranks
agree on one checkpoint: the newest whole one. A bad one is named and passed over, never loaded.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trackbed import folders
from trackbed.errors import CheckpointError, Problem

MANIFEST = "manifest.json"
LATEST = "latest"
STATE = "engine"


@dataclass(frozen=True)
class Position:
    """How far a run is: steps done, and the state of its data pipeline, which is the same on every rank."""

    step: int
    data: dict[str, Any]


def save(engine: Any, folder: Path, position: Position, keep: int) -> Path:
    """Commit the engine's state at a position; collective. CheckpointError on every rank if any rank fails."""
    step = position.step
    name = f"step-{step:08d}"
    partial = folder / f".{name}.partial"
    error = _attempt(lambda: _prepare(partial)) if _rank() == 0 else ""
    _agree(error, f"checkpoint {name} was not begun")
    error = _attempt(lambda: _write(engine, partial))
    _agree(error, f"checkpoint {name} was not written")
    entries, error = _hash_share(partial)
    _agree(error, f"checkpoint {name} was not hashed")
    entries = _gather(entries)
    error = _attempt(lambda: _commit(partial, folder / name, entries, position)) if _rank() == 0 else ""
    _agree(error, f"checkpoint {name} was not committed")
    if _rank() == 0:
        prune(folder, keep)
    return folder / name


def restore(engine: Any, folder: Path, say: Callable[[str], None]) -> Position | None:
    """Load the newest whole checkpoint; collective; returns its position, None when there is none at all.

    Raises CheckpointError when there are checkpoints and none is whole: training never restarts silently.
    """
    found = candidates(folder)
    for path in found:
        faults = verify(path) if _rank() == 0 else []
        agreed = _broadcast(faults)
        if not agreed:
            return _load(engine, path)
        say(f"warning: checkpoint {path.name} is not whole and is passed over: {agreed[0]}")
        if _rank() == 0:
            # Out of the way of pruning, which keeps the newest and would remove a good one for it.
            aside = path.with_name(f"bad-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(path, aside)
    if found or (folder / LATEST).exists():
        raise CheckpointError(
            Problem(
                id="checkpoint.none-whole",
                where=str(folder),
                what=f"none of the {len(found)} checkpoints is whole" if found else "the checkpoints are gone",
                remedy="start a new run, or restore a checkpoint from a backup",
            )
        )
    return None


def candidates(folder: Path) -> list[Path]:
    """Committed checkpoints, newest first."""
    return sorted((path for path in folder.glob("step-*") if path.is_dir()), reverse=True)


def verify(path: Path) -> list[str]:
    """What is wrong with a checkpoint's files, measured against its manifest; empty when it is whole."""
    try:
        files = json.loads((path / MANIFEST).read_text("utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"{MANIFEST} cannot be read ({error})"]
    return [fault for name, entry in files.items() if (fault := _fault(path / name, entry))]


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest committed checkpoints, and what killed runs left half-written."""
    for old in [*candidates(folder)[keep:], *folder.glob(".step-*.partial")]:
        shutil.rmtree(old, ignore_errors=True)


def _prepare(partial: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)


def _write(engine: Any, partial: Path) -> None:
    with _errors_after(engine.checkpoint_engine):
        # save_latest=False: DeepSpeed names its checkpoint before the other ranks have written theirs.
        engine.save_checkpoint(str(partial), tag=STATE, client_state={}, save_latest=False)
    torch.save(_random_state(), partial / f"random-rank{_rank():05d}.pt")


@contextmanager
def _errors_after(writer: Any) -> Iterator[None]:
    """Hold back the errors of DeepSpeed's writer until it has met the other ranks at its own barrier.

    Raised at once, the others would wait for this rank until their patience ends.
    """
    errors: list[Exception] = []
    write = writer.save

    def careful(*words: Any, **named: Any) -> Any:
        try:
            return write(*words, **named)
        except (OSError, RuntimeError) as error:
            errors.append(error)

    writer.save = careful
    try:
        yield
    finally:
        writer.save = write
    if errors:
        raise errors[0]


def _hash_share(partial: Path) -> tuple[dict[str, Any], str]:
    """Hashes of this rank's share of the files, and the error it met."""
    mine: dict[str, Any] = {}
    files = sorted(path for path in partial.rglob("*") if path.is_file())

    def hash_all() -> None:
        for path in files[_rank() :: dist.get_world_size()]:
            mine[str(path.relative_to(partial))] = _hash_and_sync(path)

    return mine, _attempt(hash_all)


def _gather(mine: dict[str, Any]) -> dict[str, Any]:
    """Put all ranks' shares together, on every rank."""
    shares: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shares, mine)
    return {name: entry for share in shares for name, entry in share.items()}


def _commit(partial: Path, final: Path, entries: dict[str, Any], position: Position) -> None:
    manifest = {"step": position.step, "data": position.data, "world": dist.get_world_size(), "files": entries}
    _write_synced(partial / MANIFEST, json.dumps(manifest, indent=1))
    for folder in (partial / STATE, partial):
        folders.sync(folder)
    shutil.rmtree(final, ignore_errors=True)
    os.rename(partial, final)
    folders.sync(final.parent)
    pointer = final.parent / f".{LATEST}.partial"
    _write_synced(pointer, final.name + "\n")
    os.replace(pointer, final.parent / LATEST)
    folders.sync(final.parent)


def _load(engine: Any, path: Path) -> Position:
    manifest = json.loads((path / MANIFEST).read_text("utf-8"))
    if manifest["world"] != dist.get_world_size():
        raise CheckpointError(
            Problem(
                id="checkpoint.world-size",
                where=str(path),
                what=f"it was saved by {manifest['world']} ranks, this run has {dist.get_world_size()}",
                remedy=f"set resources.ranks: {manifest['world']} in the run's job.yaml again, or start a new run",
            )
        )
    loaded, _ = engine.load_checkpoint(str(path), tag=STATE)
    if loaded is None:
        raise CheckpointError(Problem(id="checkpoint.unreadable", where=str(path), what="DeepSpeed did not load it"))
    # Pickled, but hashed above: what is loaded is what this run itself wrote.
    _set_random_state(torch.load(path / f"random-rank{_rank():05d}.pt", weights_only=False))
    return Position(int(manifest["step"]), manifest.get("data", {}))


def _fault(path: Path, entry: dict[str, Any]) -> str:
    if not path.exists():
        return f"{path.name} is missing"
    if path.stat().st_size != entry["bytes"]:
        return f"{path.name} has {path.stat().st_size} bytes, not {entry['bytes']}"
    return "" if folders.sha256(path) == entry["sha256"] else f"{path.name} has other content than was written"


def _hash_and_sync(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": folders.sha256(path)}


def _write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _random_state() -> dict[str, Any]:
    state = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    return {**state, "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None}


def _set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])


def _attempt(action: Callable[[], None]) -> str:
    """Run what may meet a full or vanished disk; the error's text, so that the other ranks can be told."""
    try:
        action()
    except (OSError, RuntimeError) as error:
        return f"rank {_rank()}: {error}"
    return ""


def _agree(error: str, what: str) -> None:
    errors: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(errors, error)
    if reasons := [text for text in errors if text]:
        failed = CheckpointError(
            Problem(
                id="checkpoint.not-written",
                what=f"{what}: {'; '.join(reasons)}",
                remedy="make room on the disk of the run's folder; the last committed checkpoint is untouched",
            )
        )
        failed.exit_code = 1  # the run had started
        raise failed


def _broadcast(value: Any) -> Any:
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def _rank() -> int:
    return int(dist.get_rank())
