"""Write the expectation file of a good node: what expect.py reads here, as TOML with a word about each line."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from trackbed import folders
from trackbed.errors import Problem, ValidationError
from trackbed.validate.site import expect
from trackbed.validate.site.expectations import FILE_SCHEMA

# Two nodes of one order never report the same bytes: firmware and kernel keep a little.
LESS = 0.98
COMMENTS = {
    "cpu": "exactly as many",
    "memory": f"GiB; {LESS:.0%} of what this node has",
    "shared_memory": "GiB in /dev/shm",
    "gpu": "exactly as many, all of this model",
    "driver": "exactly this one",
    "rdma": "Gbit/s of each active port",
    "mounts": "where runs are written; half of what was free: put here what your runs need",
}


def learn(output: Path, root: Path = Path("/")) -> dict[str, Any]:
    """What is here, in the shape of expectations.SECTIONS; sections only for what there is."""
    learned: dict[str, Any] = {
        "cpu": expect.read_cpus(),
        "memory": {"minimum_gib": _less(expect.read_memory()["gib"])},
    }
    shared = expect.read_shared_memory()["gib"]
    if shared:
        learned["shared_memory"] = {"minimum_gib": _less(shared)}
    return {**learned, **_hardware(root), **_mounts(output, root)}


def _hardware(root: Path) -> dict[str, Any]:
    gpus, version = expect.read_gpus(root), expect.read_driver(root)["version"]
    found: dict[str, Any] = {}
    if gpus["count"]:
        (model, _), *others = Counter(gpus["models"]).most_common()
        found["gpu"] = {"count": gpus["count"]} | ({} if others else {"model": model})
    if version:
        found["driver"] = {"version": version}
    if rates := expect.read_rdma(root)["rates"]:
        found["rdma"] = {"rates_gbit_s": sorted(rates.values(), reverse=True)}
    return found


def _mounts(output: Path, root: Path) -> dict[str, Any]:
    """The file system that holds the folder for runs."""
    known = expect.mounts(root)
    place = next((str(each) for each in (output.absolute(), *output.absolute().parents) if str(each) in known), "")
    if not place:
        return {}
    (seen,) = expect.read_mounts([place], root).values()
    mount = {"path": place, "file_system": seen["file_system"]}
    return {"mounts": [mount | ({"minimum_free_gib": _floor(seen["free_gib"] / 2)} if seen["free_gib"] else {})]}


def to_toml(learned: dict[str, Any], host: str, when: str) -> str:
    """The file's text."""
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment(f"Written by `trackbed validate --learn` on {host}, {when}."))
    document.add(tomlkit.comment("Held against a node by `trackbed validate --expect FILE`; delete what may differ."))
    document["schema_version"] = FILE_SCHEMA
    for name, section in learned.items():
        made: Any = tomlkit.aot() if isinstance(section, list) else tomlkit.table()
        for entries in section if isinstance(section, list) else [section]:
            table = tomlkit.table() if isinstance(section, list) else made
            table.comment(COMMENTS[name])
            for key, value in entries.items():
                table.add(key, value)
            if isinstance(section, list):
                made.append(table)
        document[name] = made
    return tomlkit.dumps(document)


def write(path: Path, text: str) -> None:
    """Write the file whole; ValidationError when it is there already or cannot be written."""
    must_be_new(path)
    try:
        folders.replace(path, text)
    except OSError as error:
        raise _refused(path, f"cannot be written: {error.strerror}", "name a file in a folder that exists") from error


def must_be_new(path: Path) -> None:
    """A file that a person has edited is not replaced."""
    if path.exists():
        raise _refused(path, "this file exists already", "name another file, or remove this one")


def _refused(path: Path, what: str, remedy: str) -> ValidationError:
    return ValidationError(Problem(id="validate.learn", where=str(path), what=what, remedy=remedy))


def _less(gib: float) -> float:
    return _floor(gib * LESS)


def _floor(gib: float) -> float:
    """Three digits after the point, downwards: 64 MiB is 0.0625 GiB."""
    return math.floor(gib * 1000) / 1000
