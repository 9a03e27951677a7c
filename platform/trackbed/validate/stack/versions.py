"""stack.*: the versions that are really loaded, and whether they can live in one interpreter.

One of the two speaks: a version that is not the release's is stack.drift's, also where it breaks an import; an import
that breaks although every version is right is stack.imports'.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from trackbed.release import Release, load
from trackbed.release.drift import MARK, Row, compare, components, current, targets
from trackbed.release.probe import Found
from trackbed.release.probe import load as load_modules
from trackbed.validate import LEVELS, Check, Context, Outcome, skip, unreadable

# `import tensorboard` alone loads none of its protocol messages, which are what another protobuf breaks.
MESSAGES = "tensorboard.compat.proto.event_pb2"
PROTOBUF = "google.protobuf"


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A row a component, and the components that are installed but whose import breaks."""

    rows: Sequence[Row]
    broken: Collection[str] = ()

    @property
    def moved(self) -> list[Row]:
        """What is not as the release says, whether it can be imported or not."""
        return [row for row in self.rows if row.bad and row.component not in self.broken]


@dataclass(frozen=True, kw_only=True)
class Imports:
    """What came of importing the stack in two orders, and the protobuf that TensorBoard says it needs."""

    forward: Mapping[str, Found]
    backward: Mapping[str, Found]
    protobuf_requirement: str
    moved: Sequence[str] = ()
    """Components of another version than the release's, which may be why."""


def release_of(context: Context) -> Release:
    """The release asked for, else the one this image declares, else the newest."""
    return load(context.release or current())


def measure_drift(context: Context) -> Drift:
    """One row a component."""
    return _drift(context.release or current())


@cache
def _drift(name: str | None) -> Drift:
    """Once for both checks: it also starts each command that says its version."""
    release = load(name)
    found = _loaded(tuple(targets(release)))[0]
    modules = [f"{name}." for name, each in _modules(found).items() if each.error and not gone(name, each.error)]
    probed = {part.name: re.sub(r"^(?:import|call):([\w.]+).*", r"\1.", part.probe) for part in components(release)}
    broken = [name for name, module in probed.items() if module.startswith(tuple(modules))]
    return Drift(rows=compare(release, found), broken=broken)


def gone(module: str, error: str) -> bool:
    """Whether an import's error says that the module itself, and nothing that it needs, is not installed."""
    named = re.search(r"No module named '([\w.]+)'", error)
    return named is not None and f"{module}.".startswith(f"{named[1]}.")


def judge_drift(drift: Drift) -> Outcome:
    """Every component that is not what the release says is named, with what installs the right one."""
    if not drift.rows:
        return unreadable("the list of components", list(drift.rows) if drift.rows is not None else None)
    bad = drift.moved
    if not bad and any(row.bad for row in drift.rows):
        return skip(f"{', '.join(drift.broken)}: the import breaks", "do what stack.imports says")
    if not bad:
        return Outcome(status="pass", observed=f"{len(drift.rows)} components as pinned", expected="no drift")
    return Outcome(
        status="fail",
        observed="; ".join(f"{row.component}: {row.note}" for row in bad),
        expected=", ".join(f"{row.component} {row.wanted}" for row in bad),
        evidence="; ".join(f"{row.component} declared={row.declared or '-'} loaded={row.loaded or '-'}" for row in bad),
        remedy=_mend(bad),
    )


def measure_imports(context: Context) -> Imports:
    """Import everything the release probes by import, in one interpreter, then in reverse order in another."""
    release = release_of(context)
    forward, backward = _loaded(tuple(targets(release)))
    return Imports(
        forward=_modules(forward),
        backward=_modules(backward),
        protobuf_requirement=_protobuf_requirement(),
        # What only a variable says breaks no import.
        moved=[row.component for row in measure_drift(context).moved if not row.note.startswith("the image ")],
    )


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
    if errors and imports.moved:
        return skip(
            f"{', '.join(imports.moved)} not as the release says, so that: {errors[0]}", "do what stack.drift says"
        )
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
        return "; ".join(dict.fromkeys(row.remedy for row in bad))
    installs = [row.requirement for row in bad if row.requirement]
    hint = f"make setup; or: uv pip install {' '.join(installs)}" if installs else "install what is named above"
    return hint


@cache
def _loaded(names: tuple[str, ...]) -> tuple[dict[str, Found], dict[str, Found]]:
    """Both orders, side by side, once: drift and imports share them, for importing is what takes the time."""
    order = [*names, MESSAGES]
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
        "declared and what loads disagree. Skipped when all that is wrong is an import that breaks: stack.imports "
        "fails.",
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
        "asks for. Skipped when a component is not the version that the release pins, which stack.drift fails: first "
        "that one, then the rest.",
    ),
)
