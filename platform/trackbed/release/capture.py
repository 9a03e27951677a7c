"""Write a release from what is really here: the versions that load, and what the image says of itself.

For an image whose release notes could not be read: run it, capture it, and the inferred pins become facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomlkit

from trackbed.release import Component, Release, names
from trackbed.release.drift import current, declarations, targets
from trackbed.release.probe import Found, load, read
from trackbed.release.versions import cut, plain

KEPT = ("title", "rule", "probe", "reads", "env", "label", "package", "group", "variants", "image_only", "hold")
OURS = ("TRACKBED_", "NVIDIA_PYTORCH_VERSION", "PYTORCH_BUILD_VERSION")


def capture(like: Release, name: str, variant: str) -> str:
    """The text of a release file. `like` says which components there are and how each is read."""
    parts = [part for part in like.components.values() if _belongs(part, variant)]
    loaded, declared = load(targets(like)), declarations() or {}
    tables = {part.name: _table(part, read(part, loaded), declared) for part in parts}
    known = {part.env for part in parts}
    more = {key: table for key, table in _only_declared(declared).items() if table["env"] not in known}
    # NUMPY_VERSION of an image must not take the place of the NumPy that is loaded.
    tables |= {f"{key}-declared" if key in tables else key: table for key, table in more.items()}
    return _write(like, name, {key: table for key, table in tables.items() if table})


def template() -> str:
    """The release whose parts are looked for: the image's own when there is one of that name, else the newest."""
    declared = current()
    return declared if declared in names() else names()[-1]


def _belongs(part: Component, variant: str) -> bool:
    """The driver is the host's, and a minimum: what is loaded today says nothing of it."""
    return part.group in ("runtime", "vendor") and variant in part.variants and part.probe != "driver"


def _table(part: Component, found: Found, environment: Mapping[str, str]) -> dict[str, Any]:
    """One component as it is here; empty when it is neither loaded nor declared."""
    said = environment.get(part.env, "") if part.env else ""
    if not found.version and not said:
        return {}
    table = {key: getattr(part, key) for key in KEPT if getattr(part, key)}
    table |= {"version": _version(part, found.version, said), "rule": "exact", "confidence": "captured"}
    if not found.version:
        table |= {"probe": f"declared:{part.env}", "reads": 0}
    elif said and not Component(name=part.name, **table).accepts_declared(said):
        table["declared"] = said
    if not said:
        table.pop("env", None)
    return table


def _version(part: Component, found: str, said: str) -> str:
    """What is loaded; what is declared where the library itself says less than that, and agrees."""
    if not found:
        return plain(said)
    return plain(said) if part.reads and said and cut(said, part.reads) == cut(found, part.reads) else found


def _only_declared(environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Every other *_VERSION variable: NVIDIA's images declare dozens of parts that nothing here can load."""
    names = [name for name in sorted(environment) if name.endswith("_VERSION") and not name.startswith(OURS)]
    return {
        name.removesuffix("_VERSION").lower().replace("_", "-"): {
            "title": name.removesuffix("_VERSION"),
            "version": plain(environment[name]),
            "rule": "exact",
            "probe": f"declared:{name}",
            "env": name,
            "confidence": "captured",
        }
        for name in names
        if environment[name]
    }


def _write(like: Release, name: str, tables: dict[str, dict[str, Any]]) -> str:
    document = tomlkit.document()
    document.add(tomlkit.comment(f"Captured by `trackbed release capture`; probes as in release {like.name}."))
    head = {"name": name, "summary": f"captured from a running image, like {like.name}", "base_image": "captured"}
    for key, value in head.items():  # not `|=`: tomlkit of 2023 forgets what it brings
        document[key] = value
    components = tomlkit.table(is_super_table=True)
    for key, table in tables.items():
        components[key] = {
            field: list(value) if isinstance(value, tuple) else value for field, value in table.items() if value
        }
    document["components"] = components
    return tomlkit.dumps(document)
