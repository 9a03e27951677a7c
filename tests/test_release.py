"""Releases: mistakes in one, the rules of a pin, the given facts, and that a version has one home."""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conftest import ROOT, Command, environ
from trackbed.cli import main
from trackbed.errors import ReleaseError
from trackbed.release import FOLDER, Component, Lock, Release, load, lock, names, parse
from trackbed.release import image as image_of
from trackbed.release.drift import MARK, NGC_MARK
from trackbed.release.notes import notes
from trackbed.release.render import render
from trackbed.release.versions import agree

RELEASES = {name: load(name) for name in names()}
PINS = [(name, part) for name, release in RELEASES.items() for part in release.components]
HEAD = 'name = "t"\nsummary = "for tests"\nbase_image = "none"\n'
PART = '[components.part]\ntitle = "Part"\nversion = "1.2"\nrule = "exact"\nprobe = "python"\n'
# What was given for NVIDIA's images of June and July 2023.
GIVEN = {
    "openmpi": ("4.1.4", "at-least"), "gdrcopy": ("2.3", "prefix"), "tensorboard": ("2.9.0", "exact"),
    "nsight-compute": ("2023.1.1.4", "exact"), "nsight-systems": ("2023.2.3.1001", "prefix"),
    "tensorrt": ("8.6.1.6", "exact"), "torch-tensorrt": ("1.5.0.dev0", "prefix"),
}  # fmt: skip
MARKER = "77.66.55"


def refused(text: str) -> str:
    with pytest.raises(ReleaseError) as error:
        parse(text, where="t.toml")
    return str(error.value)


def component(version: str, rule: str = "exact", **changes: Any) -> Component:
    return Component(name="part", title="Part", version=version, rule=rule, probe="python", **changes)


# --- reading a release


def test_every_mistake_is_named_at_once() -> None:
    bad = HEAD.replace('summary = "for tests"\n', "") + 'sumary = "typo"\n[lock]\nbefor = 2023-07-15\n'
    bad += PART.replace('title = "Part"\n', "").replace('"exact"', '"newest"')
    bad += 'colour = "red"\nstatus = "fine"\nconfidence = "high"\ngroup = "other"\nsubstitute = "1.1"\n'
    text = refused(bad)
    for said in (
        "t.toml: `summary` is missing", "t.toml: unknown key `sumary`", "[lock]: unknown key `befor`",
        "`title` is missing", "unknown key `colour`", "rule is `newest`", "status is `fine`", "confidence is `high`",
        "group is `other`", "a substitute without `why`",
    ):  # fmt: skip
        assert said in text
    assert text.count("[components.part]") == 7
    assert "wanted: exact, prefix, at-least" in text


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (HEAD + PART.replace('"1.2"', "1.2"), "[components.part]: version is 1.2"),
        (HEAD + PART + 'reads = "2"\n', "reads is '2'"),
        (HEAD + PART + 'provides = "nsys"\n', "provides is 'nsys'"),
        (HEAD + PART + "provides = [1]\n", "provides is [1]"),
        (HEAD + PART + "status = 1\n", "status is `1`"),
        (HEAD.replace('"t"', "23.10") + PART, "name is 23.1"),
        (HEAD + "components = 3\n", "[components]: is not a table"),
        (HEAD + '[components]\ntorch = "2.1"\n', "[components.torch]: is not a table"),
        ("lock = 3\n" + HEAD + PART, "[lock]: is not a table"),
        (HEAD + '[lock]\nbefore = "2023-07-15"\n' + PART, "'2023-07-15' is no day"),
        (HEAD + '[lock]\nlater = {torch = "soon"}\n' + PART, "'soon' is no day"),
        (HEAD + '[lock]\ncaps = "numpy<2"\n' + PART, "caps is 'numpy<2'"),
        (HEAD + PART + "env = \n", "t.toml: Invalid value (at line 9"),
    ],
)
def test_a_wrong_type_is_named_and_no_traceback(bad: str, said: str) -> None:
    assert said in refused(bad)


def test_a_release_that_does_not_exist_names_those_that_do() -> None:
    with pytest.raises(ReleaseError, match=r"there is no release 99\.99\n.*23\.06, 23\.07, 26\.11"):
        load("99.99")


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"], ids=["a folder", "no text"])
def test_a_file_that_cannot_be_read_is_not_called_unknown(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "own.toml"
    file.mkdir() if content is None else file.write_bytes(content)
    with pytest.raises(ReleaseError, match=r"own\.toml cannot be read"):
        load(str(file))


def test_a_file_of_ones_own_is_read_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(HEAD + PART, "utf-8")
    assert load(str(tmp_path / "own.toml")).components["part"] == component("1.2")
    assert load() == RELEASES["26.11"]


# --- the rules of a pin


@pytest.mark.parametrize(
    ("pin", "found", "accepted"),
    [
        (component("1.2"), "1.2", True),
        (component("1.2"), "1.2+cu121", True),
        (component("1.2"), "1.2.0", False),
        (component("1.2"), "1.20", False),
        (component("1.2+cpu"), "1.2", False),
        (component("1.2+cpu"), "1.2+cu121", False),
        (component("1.2", "prefix"), "1.2.9", True),
        (component("1.2", "prefix"), "1.20", False),
        (component("1.2", "prefix"), "1.2-rc1", True),
        (component("2.1.0a0", "prefix"), "2.1.0a0+4136153", True),
        (component("2.1.0a0", "prefix"), "2.1.0", False),
        (component("2.1.0a0", "prefix"), "2.1.0a01", False),
        (component("4.1.4", "at-least"), "4.1.4", True),
        (component("4.1.4", "at-least"), "4.1.10", True),
        (component("4.1.4", "at-least"), "5.0.11", True),
        (component("4.1.4", "at-least"), "4.1.3", False),
        (component("4.1.4", "at-least"), "4.1", False),
        (component("4.1.4", "at-least"), "4.1.3+9.9", False),
        (component("4.1.4", "at-least"), "garbage", False),
        (component("4.1.4", "at-least"), "error 404", False),
        (component("8.6.1.6", reads=3), "8.6.1", True),
        (component("8.6.1.6", reads=3), "8.6.0", False),
        (component("8.6.1.6", reads=3), "8.6.1.9", True),
        (component("12.1.1", reads=2), "12.1", True),
        (component("12.1.1", reads=2), "12.10", False),
        (component("2023.1.1.4", reads=3), "garbage", False),
        (component("8.6.1.6"), "", False),
    ],
)
def test_what_a_pin_accepts(pin: Component, found: str, accepted: bool) -> None:
    assert pin.accepts(found) is accepted


@pytest.mark.parametrize(
    ("found", "accepted"), [("2.1.0", True), ("2.1.0+cu121", True), ("2.1.1", False), ("2.1.0a0+4136153", False)]
)
def test_what_a_substitute_accepts(found: str, accepted: bool) -> None:
    pin = component("2.1.0a0", "prefix", substitute="2.1.0", why="not public")
    assert pin.accepts_substitute(found) is accepted
    assert not component("2.1.0a0", "prefix").accepts_substitute(found)


@pytest.mark.parametrize(
    ("pin", "said", "accepted"),
    [
        (component("8.6.1.6", reads=3), "8.6.1.6+cuda12.0.1.011", True),
        (component("8.6.1.6", reads=3), "8.6.1", False),
        (component("8.6.1.6", reads=3, substitute="8.6.0", why="w"), "8.6.0", True),
        (component("5.0.11", declared="4.1.4"), "4.1.4", True),
        (component("5.0.11", declared="4.1.4"), "4.1.5", False),
        (component("5.0.11"), "4.1.4", False),
    ],
)
def test_what_an_image_may_declare(pin: Component, said: str, accepted: bool) -> None:
    assert pin.accepts_declared(said) is accepted


# --- the releases that exist


@pytest.mark.parametrize(("name", "dali"), [("23.06", "1.26.0"), ("23.07", "1.27.0")])
def test_the_given_facts_of_2023_are_held(name: str, dali: str) -> None:
    parts = RELEASES[name].components
    assert {key: (parts[key].version, parts[key].rule) for key in GIVEN} == GIVEN
    assert (parts["dali"].version, parts["dali"].rule) == (dali, "exact")
    assert {parts[key].confidence for key in (*GIVEN, "dali")} == {"given"}


def test_the_two_releases_of_2023_differ_in_dali_only() -> None:
    old, new = (RELEASES[name] for name in ("23.06", "23.07"))
    assert {key for key in old.components if old.components[key] != new.components[key]} == {"dali"}
    assert replace(old.components["dali"], version="1.27.0") == new.components["dali"]
    assert (list(old.components), old.lock, old.base_image) == (list(new.components), new.lock, new.base_image)


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_is_whole(name: str) -> None:
    release = RELEASES[name]
    parts = release.components.values()
    assert release.name == name
    assert [part.name for part in parts if part.archive and not part.provides] == []
    assert [part.name for part in parts if part.digest and not re.fullmatch("[0-9a-f]{64}", part.digest)] == []
    assert [part.name for part in parts if part.digest and not part.archive] == []
    for key in ("package", "apt", "env"):
        named = [getattr(part, key).lower() for part in parts if getattr(part, key)]
        assert len(named) == len(set(named)), key


# --- everything that names a version is rendered


def inputs(name: str, part: Component) -> set[str]:
    """The input files of locks and images that name what is installed for a component."""
    named = {
        "apt.txt": part.apt,
        "apt-build.txt": part.apt_build,
        "build.in": part.group == "build" or part.name == "setuptools",
        "vendor.in": part.group == "vendor" and part.package,
        "library.in": part.library_wheel,
        "python.txt": part.name == "python",
        **{f"{variant}.in": part.group == "runtime" and part.package for variant in part.variants},
    }
    tools = {f"requirements/{part.group}.in"} if part.group in ("dev", "boot", "model", "data") else set()
    return {f"requirements/{name}/{file}" for file, there in named.items() if there} | tools


def documents(name: str, part: Component) -> set[str]:
    """What else names it: a part that an image of ours never has is in the comparison of releases only."""
    if not part.env:
        return set()
    images = {"Dockerfile"} if part.group == "runtime" or part.package or part.archive else set()
    newest = {"README.md"} if name == names()[-1] and not part.substitute else set()
    return {"docs/releases.md"} | images | newest


@pytest.mark.parametrize(("name", "changed"), PINS, ids=lambda value: str(value))
def test_one_changed_pin_changes_its_own_places_and_nothing_else(name: str, changed: str) -> None:
    part = RELEASES[name].components[changed]
    new = replace(part, substitute=MARKER) if part.substitute else replace(part, version=MARKER)
    release = replace(RELEASES[name], components={**RELEASES[name].components, changed: new})
    files = render(ROOT, [*(release if each == name else RELEASES[each] for each in RELEASES)])
    for path, text in files.items():
        was, now = path.read_text("utf-8").splitlines(), text.splitlines()
        moved = [(old, line) for old, line in zip(was, now, strict=True) if old != line]
        assert moved
        assert all(MARKER in line and line.replace(MARKER, part.installed) == old for old, line in moved), path
    assert {str(path.relative_to(ROOT)) for path in files} == inputs(name, part) | documents(name, part)


def test_rendering_elsewhere_says_where_to_do_it(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="at the top of the repository"):
        render(tmp_path)


@pytest.mark.parametrize("variant", ["cpu", "gpu"])
@pytest.mark.parametrize("name", RELEASES)
def test_the_locked_files_hold_the_pins(name: str, variant: str) -> None:
    release, folder = RELEASES[name], ROOT / "requirements" / name
    locked = lock.pins((folder / f"{variant}.lock").read_text("utf-8"))
    for part in release.select(group="runtime", variant=variant):
        wanted = part.installed + (part.cpu_build if variant == "cpu" else "")
        assert locked.get(part.package.lower()) == wanted, part.name
    for part in release.select(group="runtime"):
        assert locked.get(part.package.lower(), "").partition("+")[0] in ("", part.installed), part.name


@pytest.mark.parametrize("name", RELEASES)
def test_the_locks_of_what_builds_and_of_vendor_wheels_hold_theirs(name: str) -> None:
    release, folder = RELEASES[name], ROOT / "requirements" / name
    build, vendor, library = (
        lock.pins((folder / f"{group}.lock").read_text("utf-8")) for group in ("build", "vendor", "library")
    )
    assert build.items() >= {part.package: part.installed for part in release.select(group="build")}.items()
    assert vendor == {part.package: part.installed for part in release.select(group="vendor")}
    parts = release.components.values()
    assert library == {part.library_wheel: part.substitute for part in parts if part.library_wheel}


# --- working out locks, with a program in uv's place


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a fixture, a shell script, in uv's place; the folder of releases is a copy."""
    monkeypatch.chdir(tmp_path)
    for name in RELEASES:
        (tmp_path / f"{name}.toml").write_text((FOLDER / f"{name}.toml").read_text("utf-8"), "utf-8")
    monkeypatch.setattr(lock, "FOLDER", tmp_path)

    def fixture(body: str) -> Path:
        program = tmp_path / ".uv" / "bin" / "uv"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n# A fixture, not uv.\nfor last; do :; done\n{body}\n", "utf-8")
        program.chmod(0o755)
        return tmp_path

    return fixture


def changed_lines(old: str, new: str) -> list[str]:
    return [line for line in difflib.ndiff(old.splitlines(), new.splitlines()) if line[:1] in "+-"]


@pytest.mark.parametrize("name", RELEASES)
def test_new_versions_leave_every_other_line_of_the_file(name: str) -> None:
    text = (FOLDER / f"{name}.toml").read_text("utf-8")
    parts = RELEASES[name].components
    new = lock._with_versions(text, {"torch": "9.9.9", "deepspeed": "8.8", "cuda": "7.7"})
    wanted = [(parts["torch"], "9.9.9"), (parts["deepspeed"], "8.8"), (parts["cuda"], "7.7")]
    lines = [line for part, to in wanted for line in (f'- version = "{part.version}"', f'+ version = "{to}"')]
    assert changed_lines(text, new) == lines
    assert parse(new).components["torch"] == replace(parts["torch"], version="9.9.9")
    assert lock._with_versions(text, {}) == text


def test_a_version_that_cannot_be_moved_is_not_said_to_be() -> None:
    with pytest.raises(ReleaseError, match=r"nowhere: its version cannot be moved to 2"):
        lock._with_versions(HEAD + PART, {"part": "1.3", "nowhere": "2"})


def test_upgrade_moves_what_is_newer_and_never_what_stands_for_something_else(uv: Callable[[str], Path]) -> None:
    folder = uv("sed 's/>=.*/==9.9/' \"$last\"")
    moved = lock.upgrade(RELEASES["23.06"])
    assert moved["dali"] == ("1.26.0", "9.9")
    assert "torch" not in moved
    old, new = (file.read_text("utf-8") for file in (FOLDER / "23.06.toml", folder / "23.06.toml"))
    lines = changed_lines(old, new)
    assert {line for line in lines if line.startswith("+")} == {'+ version = "9.9"'}
    assert sum(line.startswith("+") for line in lines) == len(moved)
    assert (folder / "23.07.toml").read_text("utf-8") == (FOLDER / "23.07.toml").read_text("utf-8")


def test_upgrade_looks_until_the_day_that_is_asked_for_and_writes_it_down(uv: Callable[[str], Path]) -> None:
    folder = uv('sed \'s/>=.*/==9.9/\' "$last"; echo "$@" >>"$0.said"')
    lock.upgrade(RELEASES["26.11"], date(2027, 1, 2))
    assert "\nbefore = 2027-01-02\n" in (folder / "26.11.toml").read_text("utf-8")
    said = next(folder.parent.rglob("*.said")).read_text("utf-8")
    assert "--exclude-newer 2027-01-02" in said
    assert f"--exclude-newer {RELEASES['26.11'].lock.before}" not in said


def test_when_nothing_fits_uvs_own_words_are_said_and_nothing_is_written(uv: Callable[[str], Path]) -> None:
    folder = uv("echo 'No solution found: dali needs torch' >&2; exit 1")
    with pytest.raises(ReleaseError, match=r"uv cannot lock newest\.in of 23\.06: No solution found: dali needs torch"):
        lock.upgrade(RELEASES["23.06"])
    assert (folder / "23.06.toml").read_text("utf-8") == (FOLDER / "23.06.toml").read_text("utf-8")


def test_a_lock_is_written_beside_its_input_and_the_gpu_one_never_sees_the_cpu_builds(
    uv: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = uv('echo "seen==${UV_FIND_LINKS:-unset}"; echo "# $*"')
    monkeypatch.setenv("UV_FIND_LINKS", "here")
    (folder / "23.06").mkdir()
    for path in (ROOT / "requirements" / "23.06").glob("*.in"):
        (folder / "23.06" / path.name).write_bytes(path.read_bytes())
    written = {path.name: path.read_text("utf-8") for path in lock.lock(RELEASES["23.06"], folder)}
    assert lock.pins(written["cpu.lock"]) == {"seen": "unset"}  # its torch has no build for CPUs
    assert lock.pins(written["gpu.lock"]) == {"seen": "unset"}
    shutil.copytree(ROOT / "requirements", folder / "all")
    written = {path.name: path.read_text("utf-8") for path in lock.lock(RELEASES["26.11"], folder / "all")}
    assert lock.pins(written["cpu.lock"]) == {"seen": "here"}
    assert lock.pins(written["gpu.lock"]) == {"seen": "unset"}
    written = {path.name: path.read_text("utf-8") for path in lock.lock(RELEASES["23.06"], folder)}
    assert written["vendor.lock"] == ""
    assert "--exclude-newer 2023-07-15" in written["cpu.lock"]
    assert "--generate-hashes" in written["cpu.lock"]
    assert "--no-deps" not in written["cpu.lock"] + written["gpu.lock"]
    assert "--python-version 3.11 " in written["cpu.lock"]
    library = RELEASES["23.06"].components["tensorrt"]
    assert "--no-deps" in written["library.lock"]
    assert f"--python-version {library.library_python} " in written["library.lock"]


def test_locking_elsewhere_or_without_uv_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ReleaseError, match="make render"):
        lock.lock(RELEASES["23.06"], tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ReleaseError, match=r"uv is not here(.|\n)*make setup"):
        lock.upgrade(RELEASES["23.06"])


@pytest.mark.parametrize("verb", ["upgrade", "pin"])
def test_only_a_release_of_the_repository_that_can_be_written_is_changed(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.toml").write_text(HEAD + PART, "utf-8")
    before = {name: (FOLDER / f"{name}.toml").read_bytes() for name in RELEASES}
    monkeypatch.setattr(os, "access", lambda *_: False)
    for name, said in (("99.99", "no release 99.99"), (str(tmp_path / "own.toml"), "is no release of this repository"),
                       ("23.06", "cannot be written")):  # fmt: skip
        done = CliRunner().invoke(main, ["release", verb, name])
        assert done.exit_code == 2
        assert said in done.output
    assert before == {name: (FOLDER / f"{name}.toml").read_bytes() for name in RELEASES}


def test_dates_bound_what_is_looked_at() -> None:
    dates = lock._dates(Lock(before=date(2023, 7, 15), later={"torch": date(2023, 10, 15)}))
    assert list(dates) == ["--exclude-newer", "2023-07-15", "--exclude-newer-package", "torch=2023-10-15"]
    assert list(lock._dates(Lock())) == []


# --- what differs between two releases


def test_the_notes_of_july_say_dali_and_no_other_component() -> None:
    lines = notes(RELEASES["23.06"], RELEASES["23.07"])
    start = lines.index("Changed")
    assert [" ".join(line.split()) for line in lines[start + 1 : start + 2]] == ["NVIDIA DALI 1.26.0 -> 1.27.0"]
    assert lines[start + 2] == ""
    assert "New" not in lines
    assert "Gone" not in lines
    assert f"{len(RELEASES['23.06'].components) - 1} components are the same." in lines


def test_the_notes_say_what_came_what_went_and_which_fact_changed() -> None:
    kept = component("1.2", confidence="inferred", digest="a" * 64)
    old = Release(name="o", summary="", base_image="", components={"kept": kept, "gone": component("3")})
    now = replace(kept, confidence="confirmed", digest="b" * 64)
    new = replace(old, name="n", components={"kept": now, "new": replace(kept, title="Fresh", version="4")})
    text = "\n".join(notes(old, new))
    assert re.search(r"Changed\n  Part +1\.2: confidence inferred -> confirmed; digest a+ -> b+\n", text)
    assert re.search(r"New\n  Fresh +4\n", text)
    assert re.search(r"Gone\n  Part +3\n", text)
    assert "0 components are the same." in text


# --- an image from the outside


def described(environment: dict[str, str], labels: dict[str, str] | None = None) -> image_of.Declared:
    env = [f"{name}={value}" for name, value in environment.items()]
    return image_of.parse("i", json.dumps([{"Config": {"Env": env, "Labels": labels}}]))


def rows(environment: dict[str, str], labels: dict[str, str] | None = None, name: str = "23.06") -> dict[str, Any]:
    return {row.component: row for row in image_of.compare(RELEASES[name], described(environment, labels))}


@pytest.mark.parametrize(
    "text",
    ["", "no JSON", "[]", "{}", "null", "[{}]", '[{"Config": null}]', '[{"Config": {"Env": [1]}}]',
     '[{"Config": {"Env": 7}}]', '[{"Config": {"Labels": ["a"]}}]', '[{"Config": {"Labels": "garbage"}}]'],
)  # fmt: skip
def test_a_description_that_makes_no_sense_is_an_error(text: str) -> None:
    with pytest.raises(ReleaseError, match="i: the engine's description of the image cannot be read"):
        image_of.parse("i", text)


def test_an_ngc_image_is_held_against_the_release_it_says_it_is() -> None:
    said = {
        NGC_MARK: "23.06", "PYTORCH_VERSION": "2.1.0a0+4136153", "TRT_VERSION": "8.6.1.6+cuda12.0.1.011",
        "DALI_VERSION": "1.26.0", "OPENMPI_VERSION": "4.1.4", "NSIGHT_SYSTEMS_VERSION": "2023.2.3.1001",
    }  # fmt: skip
    image = described(said, {"com.nvidia.pytorch.version": "2.1.0a0+4136153"})
    assert (image.release, image.variant) == ("23.06", "gpu")
    found = rows(said)
    assert {found[name].status for name in ("torch", "tensorrt", "dali", "openmpi", "nsight-systems")} == {"ok"}
    assert found["deepspeed"].status == "absent"
    assert not [row for row in found.values() if row.bad]
    assert [row.component for row in rows(said, name="23.07").values() if row.bad] == ["dali"]


def test_an_image_of_ours_has_to_declare_every_part_but_nvidias() -> None:
    said = {MARK: "23.06", "TRACKBED_VARIANT": "cpu", "PYTORCH_VERSION": "2.1.0", "PYTHON_VERSION": "3.10"}
    found = rows(said)
    assert (found["torch"].status, found["python"].status, found["dali"].status) == ("substitute", "ok", "missing")
    assert "cuda" not in found
    assert rows({**said, "TRACKBED_VARIANT": "gpu"})["gdrcopy"].status == "absent"


@pytest.mark.parametrize(
    ("said", "labelled", "status", "note"),
    [
        ("1.26.0", "1.26.0", "ok", ""),
        ("", "1.26.0", "ok", ""),
        ("1.25.0", "", "drift", "declares DALI_VERSION=1.25.0, the release wants 1.26.0"),
        ("1.26.0", "1.25.0", "drift", "declares label com.nvidia.dali.version=1.25.0, the release wants 1.26.0"),
        ("1.26.0+a", "1.26.0+b", "ok", ""),
        ("garbage", "", "drift", "DALI_VERSION=garbage"),
        ("", "", "missing", "does not declare it"),
    ],
)
def test_a_variable_and_a_label_are_both_held(said: str, labelled: str, status: str, note: str) -> None:
    environment = {MARK: "23.06", "DALI_VERSION": said, "PYTHON_VERSION": "3.11"}
    row = rows(environment, {"com.nvidia.dali.version": labelled})["dali"]
    assert (row.status, row.wanted) == (status, "1.26.0")
    assert note in row.note


def test_a_variable_and_a_label_may_not_contradict_each_other() -> None:
    row = rows({"PYTHON_VERSION": "3.11"}, {"org.trackbed.python.version": "3.10"})["python"]
    assert (row.status, row.note) == ("drift", "the image's variable says 3.11, its label 3.10")


def test_an_image_that_declares_nothing_is_no_image_without_drift() -> None:
    with pytest.raises(ReleaseError, match=r"declares nothing that release 23\.06 knows of(.|\n)*release capture"):
        rows({"PATH": "/bin"})


# fixture: how NVIDIA's images spell the versions of 23.06.
SPELLINGS = {
    "NVIDIA_PYTORCH_VERSION": "23.06",
    "TRT_VERSION": "8.6.1.6+cuda12.0.1.011",
    "CUDA_VERSION": "12.1.1.009",
    "NCCL_VERSION": "2.18.1-1",
    "CUDNN_VERSION": "8.9.2.26-1+cuda12.1",
    "PYTORCH_VERSION": "2.1.0a0+4136153",
    "DALI_VERSION": "1.26.0",
    "OPENMPI_VERSION": "4.1.4",
    "GDRCOPY_VERSION": "2.3",
    "NSIGHT_SYSTEMS_VERSION": "2023.2.3.1001",
    "NSIGHT_COMPUTE_VERSION": "2023.1.1.4",
}


def test_an_ngc_image_that_is_what_the_release_says_has_no_drift() -> None:
    found = rows(SPELLINGS, {"com.nvidia.tensorrt.version": "8.6.1.6", "com.nvidia.cudnn.version": "8.9.2.26"})
    assert [row.component for row in found.values() if row.bad] == []
    assert {row.component: row.status for row in found.values() if row.declared}["tensorrt"] == "ok"


@pytest.mark.parametrize(
    ("rule", "said", "found", "reads", "same"),
    [
        ("exact", "8.6.1.6+cuda12.0.1.011", "8.6.1", 3, True),
        ("exact", "8.6.1.6", "8.6.0", 3, False),
        ("exact", "8.9.2.26-1+cuda12.1", "8.9.2", 3, True),
        ("prefix", "12.1.1.009", "12.1", 2, True),
        ("prefix", "12.1.1.009", "12.2", 2, False),
        ("prefix", "3.11", "3.11.2", 0, True),
        ("prefix", "3.1", "3.11.2", 0, False),
        ("prefix", "2.13.0", "2.13.0+cpu", 0, True),
        ("prefix", "2.1.0a0+4136153", "2.1.0+cu121", 0, False),
        ("at-least", "4.1.4", "4.1.5rc2", 0, True),
        ("at-least", "4.1.4", "4.1.4", 0, True),
        ("at-least", "9.9.9", "4.1.4", 0, False),
    ],
)
def test_what_is_declared_and_what_is_loaded_agree(rule: str, said: str, found: str, reads: int, same: bool) -> None:
    assert agree(rule, said, found, reads) is same


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('probe = "command:"', "probe is `command:`"),
        ('probe = "guess:torch"', "probe is `guess:torch`"),
        ('probe = "call:torch"', "probe is `call:torch`"),
        ('probe = "python"\nvariants = ["cpus"]', "variants is"),
        ('probe = "python"\nvariants = []', "variants is"),
    ],
)
def test_a_probe_or_a_variant_that_does_not_exist_is_named(line: str, said: str) -> None:
    with pytest.raises(ReleaseError, match=re.escape(said)):
        parse(f'{HEAD}[components.part]\ntitle = "P"\nversion = "1"\nrule = "exact"\n{line}\n')


def test_a_release_without_components_is_none() -> None:
    with pytest.raises(ReleaseError, match="it has no components"):
        parse(f"{HEAD}[components]\n")


def check_image(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """`trackbed release check --image`, with a fixture in docker's place; without one for an empty text."""
    monkeypatch.setenv("PATH", str(tmp_path))
    if engine:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n# A fixture, not docker.\n{engine}\n", "utf-8")
        (tmp_path / "docker").chmod(0o755)
    done = CliRunner().invoke(main, ["release", "check", "--image", "some:tag"])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("", "some:tag: neither docker nor podman is on PATH"),
        ("echo 'Error: No such image: some:tag' >&2; exit 1", "some:tag: Error: No such image"),
        ("exit 1", "no reason given"),
        ("echo garbage", "cannot be read"),
        ("""echo '[{"Config": {"Env": null}}]'""", "does not say which release it is"),
        (f"""echo '[{{"Config": {{"Env": ["{NGC_MARK}=19.01"]}}}}]'""", "there is no release 19.01"),
        (f"""echo '[{{"Config": {{"Env": ["{NGC_MARK}=23.06", "DALI_VERSION=1.27.0"]}}}}]'""",
         "dali: the image declares DALI_VERSION=1.27.0, the release wants 1.26.0\n  mend:"),
    ],
)  # fmt: skip
def test_an_image_that_cannot_be_read_or_drifts_is_exit_two(
    engine: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, output = check_image(engine, tmp_path, monkeypatch)
    assert code == 2
    assert said in output
    assert re.search(r"^  (mend|wanted): ", output, re.MULTILINE)


def test_an_image_that_agrees_is_exit_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = check_image(
        f"""echo '[{{"Config": {{"Env": ["{NGC_MARK}=23.06", "DALI_VERSION=1.26.0"]}}}}]'""", tmp_path, monkeypatch
    )
    assert code == 0
    assert "no drift" in output


# --- the bill of materials


def sbom(tmp_path: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trackbed", "release", "sbom", *words]
    return subprocess.run(command, env=environ(tmp_path, **more), capture_output=True, text=True, check=False)


def test_the_bill_of_materials_is_the_same_text_twice(tmp_path: Path) -> None:
    first, second = (sbom(tmp_path, "26.11", PYTHONHASHSEED=seed).stdout for seed in ("1", "2"))
    assert first == second
    assert json.loads(first)["specVersion"] == "1.6"


@pytest.mark.parametrize(("name", "variant"), [(name, variant) for name in RELEASES for variant in ("cpu", "gpu")])
def test_the_bill_of_materials_holds_packages_debian_packages_and_archives(name: str, variant: str) -> None:
    words = ["release", "sbom", name, "--variant", variant]
    done = CliRunner().invoke(main, [*words, "--vendor"])
    bill = json.loads(done.output)
    assert "pkg:generic/" not in CliRunner().invoke(main, words).output
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    entries = {entry.get("purl", entry["name"]): entry for entry in bill["components"]}
    assert RELEASES[name].base_image in entries
    folder = ROOT / "requirements" / name
    files = [folder / f"{lock}.lock" for lock in (["cpu"] if variant == "cpu" else ["gpu", "vendor", "library"])]
    locked = {item for file in files for item in lock.pins(file.read_text("utf-8")).items()}
    assert {(e["name"], e["version"]) for purl, e in entries.items() if purl.startswith("pkg:pypi/")} >= locked
    for part in RELEASES[name].components.values():
        if part.apt:
            assert f"pkg:deb/debian/{part.apt}@{part.version}" in entries
        if part.archive and variant == "gpu":
            origin = entries[f"pkg:generic/{part.name}@{part.version}"]["externalReferences"][0]
            assert [each["content"] for each in origin.get("hashes", [])] == [*filter(None, [part.digest])]
    assert variant == "gpu" or not any(purl.startswith("pkg:generic/") for purl in entries)


def test_no_bill_for_a_release_that_is_unknown_or_not_locked(tmp_path: Path, trackbed: Command) -> None:
    for words, more, said in (
        (["99.99"], {}, "there is no release 99.99"),
        (["23.06"], {"TRACKBED_REQUIREMENTS": str(tmp_path)}, "there is no locked file of 23.06 for cpu"),
    ):
        done = trackbed("release", "sbom", *words, **more)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ")
        assert said in done.stderr
