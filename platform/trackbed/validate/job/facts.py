"""What a node says of itself: its name, its run folder, its versions and their hash."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from trackbed.release import Release, load
from trackbed.release.drift import current
from trackbed.release.probe import DRIVER, NUMBER, command_version
from trackbed.validate import Context
from trackbed.validate.network.addresses import GLOO_IFNAME, gloo_fault
from trackbed.validate.network.interfaces import judge_host_name, measure_host_name

SHARED = "TRACKBED_RUNS_SHARED"
# A job runs with two of these that differ; it is worth saying, and no more.
OTHER = "package "
HARMLESS = ("kernel", "trackbed revision")


def facts(context: Context, nodes: int) -> dict[str, Any]:
    """This node's facts. `versions` names every version: those of the release plainly, the rest as `package NAME`."""
    versions = known_versions(load(context.release or current()))
    return {
        "host": socket.gethostname(),
        "nodes": nodes,
        "folder": str(context.output.absolute()),
        "hash": digest(versions),
        "versions": versions,
        "shared": is_shared(os.environ),
        "fault": gloo_cause(context),
    }


def gloo_cause(context: Context) -> str:
    """Why gloo finds no way from this node to the others, in network.host-name's words; empty when nothing is known."""
    if os.environ.get(GLOO_IFNAME):
        return gloo_fault()
    outcome = judge_host_name(measure_host_name(context))
    return outcome.observed if outcome.status == "fail" else ""


def known_versions(release: Release, driver: Path = DRIVER) -> dict[str, str]:
    """Every version that can differ between two nodes which should be the same."""
    pinned = {part.package.lower() for part in release.components.values() if part.package}
    found = {
        "release": release.name,
        "kernel": os.uname().release,
        "python": sys.version.split()[0],
        "nvidia driver": _driver(driver),
        "mpirun": command_version("mpirun --version").version or "none",
        "trackbed revision": os.environ.get("TRACKBED_REVISION", "none"),
    }
    for each in metadata.distributions():
        name = (each.metadata["Name"] or "").lower()
        if name:
            found.setdefault(name if name in pinned else OTHER + name, each.version)
    return found | _loaded()


def is_shared(environment: Mapping[str, str]) -> bool:
    """Whether the folder for runs is meant to be one folder for all nodes: it is, unless somebody says no."""
    return environment.get(SHARED, "").lower() not in ("0", "no", "false", "off")


def harmless(name: str) -> bool:
    """Whether two nodes of one job may differ in it."""
    return name in HARMLESS or name.startswith(OTHER)


def digest(versions: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(versions, sort_keys=True).encode()).hexdigest()[:16]


def _loaded() -> dict[str, str]:
    """What torch carries inside: two builds of one version may differ in it."""
    import torch

    found = {"torch (loaded)": str(torch.__version__), "cuda of torch": str(torch.version.cuda or "none")}
    if torch.version.cuda and hasattr(torch.cuda, "nccl"):
        found["nccl of torch"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return found


def _driver(path: Path) -> str:
    """The kernel module's version, from the first line of its own file; `none` without one."""
    try:
        text = path.read_text("utf-8")
    except OSError:
        return "none"
    number = NUMBER.search(text)
    return number.group() if number else text.strip()[:40]
