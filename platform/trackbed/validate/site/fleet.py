"""Many nodes' validations side by side: which node is off, which checks fail where, whose versions differ.

    nodes, unread = fleet.read(paths)          # files of `trackbed validate --json FILE`
    view = fleet.view(nodes, unread)

A node is an outlier by its distance from the median in median absolute deviations: one bad node moves neither, where it
would move a mean and a standard deviation enough to hide itself.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from trackbed.validate import SCHEMA_VERSION, Status, figures
from trackbed.validate.figures import Figure

# Iglewicz and Hoaglin's score: 0.6745 makes the median absolute deviation comparable with a standard one.
SCORE, TO_SIGMA = 3.5, 0.6745
LEAST_PERCENT = 5.0
LEAST_NODES = 4


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node's document: its name, its release, each check's record, each figure."""

    name: str
    release: str
    created: str
    checks: Mapping[str, Mapping[str, Any]]
    figures: Mapping[str, Figure]


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """A node whose figure is off; percent is how much, positive for more than the median."""

    node: str
    value: float
    percent: float
    score: float
    worse: bool


@dataclass(frozen=True, kw_only=True)
class Strip:
    """One figure over the fleet."""

    name: str
    unit: str
    better: str
    values: Mapping[str, float]
    median: float
    outliers: Sequence[Outlier]
    missing: Sequence[str]
    reach: float = 0.0
    """How far from the median is still nobody's business."""


@dataclass(frozen=True, kw_only=True)
class View:
    """All that is to be said. `failing` is check -> status -> nodes; `versions` is release -> nodes, of two or more."""

    nodes: Sequence[Node]
    unread: Mapping[str, str]
    strips: Sequence[Strip]
    failing: Mapping[str, Mapping[str, Sequence[str]]]
    versions: Mapping[str, Sequence[str]]
    note: str

    @property
    def outliers(self) -> list[tuple[Strip, Outlier]]:
        """Worse ones first, the furthest off first."""
        found = [(strip, each) for strip in self.strips for each in strip.outliers]
        return sorted(found, key=lambda pair: (not pair[1].worse, -pair[1].score))

    @property
    def exit_code(self) -> int:
        """As of one node's validation: 3 a file was no validation, 2 a check failed, 1 something is odd, else 0."""
        if self.unread or not self.nodes:
            return 3
        if any(set(statuses) & {"fail", "error"} for statuses in self.failing.values()):
            return 2
        odd = self.outliers or self.failing or self.versions or any(strip.missing for strip in self.strips)
        return 1 if odd else 0


def read(paths: Iterable[Path]) -> tuple[list[Node], dict[str, str]]:
    """The nodes, and why a file is none, by path. Two files of one node: the later one counts."""
    nodes: dict[str, Node] = {}
    unread = {}
    for path in paths:
        try:
            made = parse(json.loads(path.read_text("utf-8")))
        except OSError as error:
            unread[str(path)] = f"cannot be read: {error.strerror}"
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            unread[str(path)] = f"is not what `trackbed validate --json` writes: {str(error)[:100]}"
        else:
            if made.name not in nodes or made.created >= nodes[made.name].created:
                nodes[made.name] = made
    return list(nodes.values()), unread


def parse(document: Mapping[str, Any]) -> Node:
    """One document as a node. Raises KeyError, TypeError or ValueError when it is none."""
    if document["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema_version {document['schema_version']!r} is not {SCHEMA_VERSION}")
    results = document["results"]
    if not isinstance(document.get("host"), str) or not results:
        raise ValueError("it has no host or no results")
    if odd := [done["status"] for done in results if done["status"] not in get_args(Status)]:
        raise ValueError(f"status {odd[0]!r} is unknown")
    return Node(
        name=document["host"],
        release=str(document.get("release", "")),
        created=str(document.get("created", "")),
        checks={str(done["id"]): done for done in results},
        figures=figures.of_results(results),
    )


def view(nodes: Sequence[Node], unread: Mapping[str, str] | None = None) -> View:
    """What there is to say of these nodes."""
    few = f"{len(nodes)} nodes: outliers need {LEAST_NODES} or more" if len(nodes) < LEAST_NODES else ""
    names = sorted({name for node in nodes for name in node.figures})
    note = few or ("" if names else "no figures in these files: add --level deep")
    return View(
        nodes=nodes,
        unread=unread or {},
        strips=[strip(name, nodes) for name in names],
        failing=_failing(nodes),
        versions=_versions(nodes),
        note=note,
    )


def strip(name: str, nodes: Sequence[Node]) -> Strip:
    """One figure over all nodes; a node that measured others of its check and not this one is named as well."""
    found = {node.name: node.figures[name] for node in nodes if name in node.figures}
    first = next(iter(found.values()))
    values = {node: each.value for node, each in found.items()}
    return Strip(
        name=name,
        unit=first.unit,
        better=first.better,
        values=values,
        median=statistics.median(values.values()),
        outliers=outliers(values, first.better),
        missing=[node.name for node in nodes if node.name not in found],
        reach=reach(values),
    )


def reach(values: Mapping[str, float]) -> float:
    """How far from the median a value may be."""
    middle = statistics.median(values.values())
    return max(SCORE * _sigma([abs(value - middle) for value in values.values()]), LEAST_PERCENT / 100 * middle)


def outliers(values: Mapping[str, float], better: str) -> list[Outlier]:
    """Who is more than SCORE deviations and LEAST_PERCENT off the median; nobody among fewer than LEAST_NODES."""
    if len(values) < LEAST_NODES:
        return []
    middle = statistics.median(values.values())
    sigma = _sigma([abs(value - middle) for value in values.values()])
    found = []
    for node, value in values.items():
        percent = 100 * (value - middle) / middle
        # Where more than half are exactly equal, whoever is not is infinitely far off; the percentage decides.
        score = abs(value - middle) / sigma if sigma else math.inf
        if score > SCORE and abs(percent) >= LEAST_PERCENT:
            worse = (percent < 0) == (better == "higher")
            found.append(Outlier(node=node, value=value, percent=percent, score=score, worse=worse))
    return found


def _sigma(distances: Sequence[float]) -> float:
    return statistics.median(distances) / TO_SIGMA


def _failing(nodes: Sequence[Node]) -> dict[str, dict[str, list[str]]]:
    """Check -> status -> the nodes, of what is neither good nor skipped; what hits most nodes first."""
    found: dict[str, dict[str, list[str]]] = {}
    for node in nodes:
        for name, done in node.checks.items():
            if done["status"] in ("warn", "fail", "error"):
                found.setdefault(name, {}).setdefault(done["status"], []).append(node.name)
    return dict(sorted(found.items(), key=lambda each: -sum(map(len, each[1].values()))))


def _versions(nodes: Sequence[Node]) -> dict[str, list[str]]:
    """Release -> nodes, when there are several; the usual one first."""
    counts = Counter(node.release for node in nodes).most_common()
    several = len(counts) > 1
    return {release: [node.name for node in nodes if node.release == release] for release, _ in counts if several}
