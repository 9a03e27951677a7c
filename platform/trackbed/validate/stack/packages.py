"""container.packages: whether the installed packages can live together, by their own metadata."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

from trackbed.errors import TrackbedError
from trackbed.release.drift import components
from trackbed.validate import Check, Context, Outcome, skip, unreadable
from trackbed.validate.stack.versions import release_of

# NVIDIA's libraries carry the major version of CUDA in their name, or, from CUDA 13 on, as their own.
SUFFIX = re.compile(r"^(nvidia-[a-z0-9-]+?)-cu(\d\d)$")
PLAIN = ("nvidia-cuda-runtime", "nvidia-cuda-nvrtc", "nvidia-cublas")


def measure_packages(context: Context, found: Iterable[metadata.Distribution] | None = None) -> dict[str, Any]:
    """Installed packages by the CUDA they are for, that of torch, and requirements that nothing here meets."""
    installed = {_key(each.metadata["Name"]): each for each in (found or metadata.distributions()) if each.metadata}
    cuda: dict[str, list[str]] = defaultdict(list)
    for name, each in sorted(installed.items()):
        if major := _cuda(name, each.version):
            cuda[major].append(name)
    torch = installed.get("torch")
    moved = _moved(context, installed)
    problems = [problem for each in installed.values() for problem in _broken(each, installed)]
    wanted = [match[2] for line in (torch.requires if torch else None) or [] if (match := SUFFIX.match(_named(line)))]
    return {
        "count": len(installed),
        "cuda": dict(cuda),
        "torch": Counter(wanted).most_common(1)[0][0] if wanted else "",
        "broken": [text for text, names in problems if names.isdisjoint(moved)],
        "moved": sorted({name for _, names in problems for name in names & moved}),
    }


def judge_packages(found: object) -> Outcome:
    """Two CUDAs in one interpreter: the library that is loaded first wins, for both."""
    value = found if isinstance(found, Mapping) else {}
    count, cuda, broken, moved = (value.get(name) for name in ("count", "cuda", "broken", "moved"))
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        return unreadable("the installed packages", found)
    if not isinstance(cuda, Mapping) or not isinstance(broken, list) or not isinstance(moved, list):
        return unreadable("the installed packages", found)
    expected = "libraries of one CUDA, and every requirement met"
    if len(cuda) > 1:
        return _mixed(cuda, str(value.get("torch") or ""), expected)
    if broken:
        observed = "; ".join(map(str, broken[:5])) + (f"; and {len(broken) - 5} more" if len(broken) > 5 else "")
        remedy = "make setup, or in the image: docker compose build; then install with constraints: uv pip install " \
            "-c constraint.txt"  # fmt: skip
        return Outcome(status="warn", observed=observed, expected=expected, remedy=remedy)
    if moved:
        return skip(f"other packages need another {', '.join(moved)}, as the release does", "do what stack.drift says")
    major = next(iter(cuda), "")
    of_cuda = f", those of NVIDIA for CUDA {major}" if major else ""
    return Outcome(status="pass", observed=f"{count} packages fit together{of_cuda}", expected=expected)


def _mixed(cuda: Mapping[str, Sequence[str]], torch: str, expected: str) -> Outcome:
    """Those for torch's own CUDA stay; without torch, those there are most of."""
    keep = torch if torch in cuda else max(cuda, key=lambda major: (len(cuda[major]), major))
    odd = [name for major, names in cuda.items() if major != keep for name in names]
    return Outcome(
        status="fail",
        observed=f"libraries for CUDA {' and '.join(sorted(cuda))}: {', '.join(odd[:6])} beside those for {keep}",
        expected=expected,
        evidence="; ".join(f"CUDA {major}: {', '.join(names)}" for major, names in sorted(cuda.items())),
        remedy=f"uv pip uninstall {' '.join(odd)}; and find what brought them: uv tree --invert --package {odd[0]}",
    )


def _cuda(name: str, version: str) -> str:
    match = SUFFIX.match(name)
    if match:
        return match[2]
    return version.partition(".")[0] if name in PLAIN else ""


def _moved(context: Context, installed: Mapping[str, metadata.Distribution]) -> set[str]:
    """Packages of another version than the release pins: stack.drift fails for them, and it can mend them."""
    try:
        parts = components(release_of(context))
    except TrackbedError:
        return set()
    # What another probe reads is the version of a library in the package, not the package's.
    pins = {_key(part.package): part for part in parts if part.probe.startswith(("import:", "metadata:"))}
    there = {name: (pins[name], each.version) for name, each in installed.items() if name in pins}
    right = {name for name, (pin, found) in there.items() if pin.accepts(found) or pin.accepts_substitute(found)}
    return set(there) - right


def _broken(each: metadata.Distribution, installed: Mapping[str, metadata.Distribution]) -> list[tuple[str, set[str]]]:
    """What a package requires here and does not find, and the two's names; what belongs to an extra is not required."""
    from packaging.requirements import InvalidRequirement, Requirement

    problems = []
    for line in each.requires or []:
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            continue
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        there = installed.get(_key(wanted.name))
        if there is None:
            text = f"{each.metadata['Name']} {each.version} needs {wanted.name}, which is not installed"
        elif not wanted.specifier.contains(there.version, prereleases=True):
            need = f"{wanted.name}{wanted.specifier}"
            text = f"{each.metadata['Name']} {each.version} needs {need}, but {there.version} is installed"
        else:
            continue
        problems.append((text, {_key(each.metadata["Name"]), _key(wanted.name)}))
    return problems


def _named(requirement: str) -> str:
    return _key(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name or "").lower()


CHECKS = (
    Check(
        id="container.packages",
        title="the packages fit together",
        measure=measure_packages,
        judge=judge_packages,
        deadline=30,
        child="host",
        levels=("image", "node", "job", "deep"),
        proof="mixed",
        why="`pip install` of one more package may replace another's version or bring a second CUDA beside torch's: "
        "`undefined symbol` at import, or a cuDNN of another major at the first convolution.",
        rule="Fails when NVIDIA's libraries for two CUDA majors are installed; warns for each requirement that is not "
        "met, as `pip check` does. Skipped when those all come of a package of another version than the release pins, "
        "which stack.drift fails.",
    ),
)
