"""stack.*: the versions that are really loaded, and whether they can live in one interpreter."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from trackbed.release import Release, load
from trackbed.release.drift import MARK, Row, compare, current, targets
from trackbed.release.probe import Found
from trackbed.release.probe import load as load_modules
from trackbed.validate import LEVELS, Check, Context, Outcome, unreadable

# `import tensorboard` alone loads none of its protocol messages, which are what another protobuf breaks.
EXTRA = ("tensorboard.compat.proto.event_pb2",)
PROTOBUF = "google.protobuf"


@dataclass(frozen=True, kw_only=True)
class Imports:
    """What came of importing the stack in two orders, and the protobuf that TensorBoard says it needs."""

    forward: Mapping[str, Found]
    backward: Mapping[str, Found]
    protobuf_requirement: str


def release_of(context: Context) -> Release:
    """The release asked for, else the one this image declares, else the newest."""
    return load(context.release or current())


def measure_drift(context: Context) -> list[Row]:
    """One row a component."""
    release = release_of(context)
    return compare(release, _loaded(tuple(targets(release)))[0])


def judge_drift(rows: Sequence[Row]) -> Outcome:
    """Every component that is not what the release says is named, with what installs the right one."""
    if not rows:
        return unreadable("the list of components", list(rows) if rows is not None else None)
    bad = [row for row in rows if row.bad]
    if not bad:
        return Outcome(status="pass", observed=f"{len(rows)} components as pinned", expected="no drift")
    return Outcome(
        status="fail",
        observed="; ".join(f"{row.component}: {row.note}" for row in bad),
        expected=", ".join(f"{row.component} {row.wanted}" for row in bad),
        evidence="; ".join(f"{row.component} declared={row.declared or '-'} loaded={row.loaded or '-'}" for row in bad),
        remedy=_mend(bad),
    )


def measure_imports(context: Context) -> Imports:
    """Import everything the release probes by import, in one interpreter, then in reverse order in another."""
    forward, backward = _loaded(tuple(targets(release_of(context))))
    return Imports(forward=_modules(forward), backward=_modules(backward), protobuf_requirement=_protobuf_requirement())


def _modules(found: Mapping[str, Found]) -> dict[str, Found]:
    """What was imported, without the versions that were asked of C libraries."""
    return {target: version for target, version in found.items() if ":" not in target}


def judge_imports(imports: Imports) -> Outcome:
    """Libraries that bring their own copies of protobuf or OpenMP may load in one order and crash in the other."""
    if not imports.forward or set(imports.forward) != set(imports.backward):
        return unreadable("the list of modules", sorted(set(imports.forward) ^ set(imports.backward)) or None)
    orders = {"in order": imports.forward, "in reverse order": imports.backward}
    errors = [
        f"{name}, {order}: {found.error}" for order, all_found in orders.items() for name, found in all_found.items()
        if found.error
    ]  # fmt: skip
    protobuf = imports.forward.get(PROTOBUF, Found()).version
    if not errors and not meets(protobuf, imports.protobuf_requirement):
        errors = [f"protobuf {protobuf or 'unknown'} is outside {imports.protobuf_requirement or 'an unknown range'}"]
    expected = f"every module imports in both orders; protobuf{imports.protobuf_requirement}"
    if errors:
        remedy = "make setup, or in the image: docker compose build; then look at the first error alone"
        return Outcome(status="fail", observed="; ".join(errors), expected=expected, remedy=remedy)
    observed = f"{len(imports.forward)} modules in both orders, protobuf {protobuf}"
    return Outcome(status="pass", observed=observed, expected=expected)


def meets(version: str, requirement: str) -> bool:
    """Whether a plain version satisfies a requirement such as `<8.0.0,>=6.31.1`; False for what is no version."""
    clauses = re.findall(r"(<=|>=|==|!=|<|>)\s*([\d.]+)", requirement)
    if not clauses or not re.fullmatch(r"\d+(\.\d+)*", version):
        return False
    return all(_holds(_key(version), sign, _key(bound)) for sign, bound in clauses)


def _holds(version: list[int], sign: str, bound: list[int]) -> bool:
    signs = {
        "<": version < bound,
        "<=": version <= bound,
        ">": version > bound,
        ">=": version >= bound,
        "==": version == bound,
        "!=": version != bound,
    }
    return signs[sign]


def _key(version: str) -> list[int]:
    """Numbers to compare; trailing zeros do not count, 8.0.0 is 8."""
    numbers = [int(part) for part in version.split(".") if part]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


def _protobuf_requirement() -> str:
    """TensorBoard's own range, from its metadata: no second home for it here."""
    try:
        lines = metadata.requires("tensorboard") or []
    except metadata.PackageNotFoundError:
        return ""
    names = (re.match(r"protobuf\b\s*([^;]*)", line) for line in lines)
    return next((match[1].strip().strip("()") for match in names if match), "")


def _mend(bad: Sequence[Row]) -> str:
    if MARK in os.environ:
        return "rebuild the image (docker compose build), and set none of its versions with -e"
    installs = [row.requirement for row in bad if row.requirement]
    hint = f"make setup; or: uv pip install {' '.join(installs)}" if installs else "install what is named above"
    return hint


@cache
def _loaded(names: tuple[str, ...]) -> tuple[dict[str, Found], dict[str, Found]]:
    """Both orders, side by side, once: drift and imports share them, for importing is what takes the time."""
    order = [*names, *EXTRA]
    with ThreadPoolExecutor(2) as pool:
        forward, backward = pool.map(load_modules, (order, order[::-1]))
    return forward, backward


CHECKS = (
    Check(
        id="stack.drift",
        title="versions against the release",
        measure=measure_drift,
        judge=judge_drift,
        deadline=150,
        levels=LEVELS,
        child="stack",
        why="A version that `pip install` moved unseen is found when a run behaves differently from the last one.",
        rule="Fails when a component is not what the release pins, what the image declares, or what is "
        "declared and what loads disagree.",
    ),
    Check(
        id="stack.imports",
        title="the stack in one interpreter, in two orders",
        measure=measure_imports,
        judge=judge_imports,
        deadline=150,
        levels=LEVELS,
        child="stack",
        why="Libraries that bring their own protobuf or OpenMP load in one order and die in the other: "
        "`Descriptors cannot be created directly`.",
        rule="Fails when a module cannot be imported in either order, or protobuf is outside what TensorBoard "
        "asks for.",
    ),
)
