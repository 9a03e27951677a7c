"""checkpoint.*: what an unfinished run would resume from, read the way the training reads it, and never unpickled.

A committed checkpoint is a folder `step-NNNNNNNN` with manifest.json: {"step", "world", "files": {name: {"bytes",
"sha256"}}}. The training passes a bad one over; these checks say so before anyone waits for GPUs.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trackbed import folders
from trackbed.validate import Check, Context, Outcome, Status, skip, unreadable
from trackbed.validate.machine.mounts import must_answer

MANIFEST = "manifest.json"
LATEST = "latest"
MOST_RUNS = 200
# What torch.load, numpy.load(allow_pickle) or pickle may be pointed at.
PICKLES = {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle"}


def runs_in(output: Path) -> list[Path]:
    """Runs to look at, newest first: those in the folder for runs, or the one run that the folder is itself.

    Raises Unreachable when its file system hangs.
    """
    must_answer(output)
    if (output / "job.yaml").exists():
        return [output]
    found = []
    with suppress(OSError):
        found = [path for path in output.iterdir() if (path / "job.yaml").is_file()]
    return sorted(found, key=_changed, reverse=True)[:MOST_RUNS]


def unfinished(context: Context) -> list[Path]:
    """Runs that could be resumed: begun, with checkpoints, not finished. `expect["run"]` names one to look at."""
    if named := context.expect.get("run"):
        return [run for run in (Path(str(named)), context.output / str(named)) if (run / "checkpoints").is_dir()][:1]
    runs = runs_in(context.output)
    return [run for run in runs if (run / "checkpoints").is_dir() and not (run / "summary.json").exists()]


def committed(run: Path) -> list[Path]:
    """Its committed checkpoints, newest first."""
    return sorted((path for path in (run / "checkpoints").glob("step-*") if path.is_dir()), reverse=True)


@contextmanager
def held(run: Path) -> Iterator[bool]:
    """Whether the run's lock could be taken; it is ours inside the block. A run that never had one is ours too."""
    try:
        file = (run / ".lock").open("rb")
    except FileNotFoundError:
        yield True
        return
    except OSError:
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def busy(run: Path) -> bool:
    """Whether an attempt of the run is going on. The lock is let go at once: a run that starts must find it free."""
    with held(run) as ours:
        return not ours


def faults(checkpoint: Path, *, hashes: bool) -> list[str]:
    """What is wrong with a checkpoint's files, against its manifest: names, sizes, and with `hashes` every byte."""
    try:
        files = json.loads((checkpoint / MANIFEST).read_text("utf-8"))["files"]
        entries = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in files.items()}
    except FileNotFoundError:
        return [f"{MANIFEST} is missing"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{MANIFEST} cannot be read ({error})"]
    if not entries:
        return [f"{MANIFEST} names no file"]
    found = (_fault(checkpoint / name, *entry, hashes=hashes) for name, entry in sorted(entries.items()))
    return [text for text in found if text]


def measure_newest(context: Context) -> dict[str, Any]:
    """Of each unfinished run: its newest checkpoint, what is wrong with it, the newest older one that is whole.

    Sizes only at a node's start, every byte at level deep: a checkpoint may be many times larger than what a disk
    reads in a node's ten seconds. A run that is going on is left alone.
    """
    hashes = context.level == "deep"
    looked = [
        {"run": str(run), "busy": True} if busy(run) else _look(run, hashes=hashes) for run in unfinished(context)
    ]
    resuming = (context.output / "job.yaml").exists()
    return {"runs": looked, "hashes": hashes, "named": str(context.expect.get("run") or ""), "resuming": resuming}


def judge_newest(measured: object) -> Outcome:
    """A bad newest checkpoint fails. When that very run is being resumed and has an older whole one, it warns."""
    found = measured if isinstance(measured, Mapping) else {}
    runs = found.get("runs")
    if not isinstance(runs, list) or any(not _readable(run) for run in runs):
        return unreadable("the runs' checkpoints", measured)
    if not runs:
        named = found.get("named")
        if named:
            return skip(f"{named} has no checkpoint", "give the name of a run in the folder for runs, or its path")
        return skip("no unfinished run has a checkpoint here", "nothing to do: there is none to resume from")
    depth = "every byte hashed" if found.get("hashes") else "sizes against the manifest; --level deep hashes them"
    bad = [run for run in runs if run.get("faults")]
    if not bad:
        busy = sum(bool(run.get("busy")) for run in runs)
        more = f", {busy} running and left alone" if busy else ""
        return Outcome(status="pass", observed=f"newest of {len(runs) - busy} whole ({depth}){more}")
    status: Status = "warn" if found.get("resuming") and all(run.get("good") for run in bad) else "fail"
    return Outcome(
        status=status,
        observed="; ".join(map(_said, bad)),
        expected=f"every file of the newest checkpoint as its manifest says ({depth})",
        evidence="; ".join(f"{run['run']}: {fault}" for run in bad for fault in run["faults"]),
        remedy="; ".join(map(_mend, bad)),
    )


def measure_pickles(context: Context) -> list[dict[str, Any]]:
    """Pickles in checkpoints of unfinished runs that no manifest vouches for; only names are read."""
    found = []
    for run in unfinished(context):
        for checkpoint in committed(run):
            for path, why in _unvouched(checkpoint):
                found.append({"run": str(run), "file": str(path), "why": why})
    return found


def judge_pickles(found: object) -> Outcome:
    """Loading a pickle runs what it says. What a run wrote itself is in its manifest; anything else is a stranger."""
    if not isinstance(found, list) or any(not isinstance(item, Mapping) or "file" not in item for item in found):
        return unreadable("the pickles in checkpoints", found)
    if not found:
        return Outcome(status="pass", observed="every pickle in unfinished runs' checkpoints is in a manifest")
    first = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return Outcome(
        status="warn",
        observed=f"{first['file']}: {first.get('why')}{more}",
        expected="a manifest that names every pickle with its hash",
        evidence="; ".join(str(item["file"]) for item in found),
        remedy=f"do not load it: move it away (mv {first['file']} /somewhere/else), unless you know who wrote it; then "
        "torch.load(..., weights_only=True), or keep weights as safetensors",
    )


def _unvouched(checkpoint: Path) -> Iterator[tuple[Path, str]]:
    listed: Mapping[str, Any] = {}
    why = "the manifest does not name it"
    try:
        listed = dict(json.loads((checkpoint / MANIFEST).read_text("utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError):
        why = "there is no readable manifest"
    for path in sorted(checkpoint.rglob("*")):
        if path.suffix in PICKLES and path.is_file() and str(path.relative_to(checkpoint)) not in listed:
            yield path, why


def _look(run: Path, *, hashes: bool) -> dict[str, Any]:
    """The record of one run; `good` is empty when no older checkpoint is whole."""
    found = committed(run)
    if not found:
        gone = (run / "checkpoints" / LATEST).exists()
        return {"run": str(run), "newest": "", "faults": ["the checkpoints are gone"] if gone else [], "good": ""}
    wrong = faults(found[0], hashes=hashes)
    older = (path.name for path in found[1:] if not faults(path, hashes=hashes)) if wrong else iter(())
    return {"run": str(run), "newest": found[0].name, "faults": wrong, "good": next(older, "")}


def _readable(run: object) -> bool:
    if not isinstance(run, Mapping) or not isinstance(run.get("run"), str):
        return False
    return bool(run.get("busy")) or isinstance(run.get("faults"), list)


def _said(run: Mapping[str, Any]) -> str:
    faults_ = run["faults"]
    more = f" and {len(faults_) - 1} more" if len(faults_) > 1 else ""
    good = f"the newest whole one is {run['good']}" if run.get("good") else "no other one is whole"
    return f"{Path(run['run']).name}/{run.get('newest') or 'checkpoints'}: {faults_[0]}{more}; {good}"


def _mend(run: Mapping[str, Any]) -> str:
    folder, newest = Path(run["run"]) / "checkpoints", str(run.get("newest"))
    if run.get("good"):
        return f"go on from {run['good']}: mv {folder / newest} {folder / f'bad-{newest}'} (--resume does it by itself)"
    return f"restore {folder} from a backup, or give the run up: mv {run['run']} {run['run']}.lost"


def _fault(path: Path, size: int, sha256: str, *, hashes: bool) -> str:
    try:
        real = path.stat().st_size
        if real != size:
            return f"{path.name} has {real} bytes, not {size}"
        same = not hashes or folders.sha256(path) == sha256
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror})"
    return "" if same else f"{path.name} has other content than was written"


def _changed(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


CHECKS = (
    Check(
        id="checkpoint.newest",
        title="what an unfinished run would resume from",
        measure=measure_newest,
        judge=judge_newest,
        deadline=1800,
        child="checkpoints",
        why="A truncated shard ends a resume with `OSError: [Errno 22] Invalid argument` and no file name; 16 flipped "
        "bytes load without a word and take the loss from 0.009 to 26 476.",
        rule="Fails when a file of an unfinished run's newest checkpoint is missing, has another size or (--level "
        "deep) other content; names the newest whole one. Warns when that run is being resumed and an older is whole.",
    ),
    Check(
        id="checkpoint.unlisted-pickles",
        title="pickles that no manifest vouches for",
        measure=measure_pickles,
        judge=judge_pickles,
        deadline=60,
        child="checkpoints",
        why="No message: loading a pickle runs whatever program its author put into it, and DeepSpeed loads its "
        "checkpoints with weights_only=False.",
        rule="Warns when a checkpoint of an unfinished run holds a pickle that its manifest does not name, or has no "
        "readable manifest. Nothing is unpickled to find out.",
    ),
)
