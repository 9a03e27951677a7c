"""`trackbed validate` as a person, a CI server, Slurm or another program runs it."""

from __future__ import annotations

import json
import os
import re
import resource
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conftest import ROOT, Command
from test_validate_render import mistakes, parsed
from trackbed.cli.stack import check_machine, release_name
from trackbed.validate import DOCS, Outcome, Result, result, runner
from trackbed.validate.catalogue import CHECKS
from trackbed.validate.site import slurm
from validate_rules import check

FAKE = ROOT / "tests" / "fixtures" / "slurm"
# Two quick checks: one that any machine without RDMA passes, one that fails for real when the site expects 9999 CPUs.
QUICK = ("--only", "host.locked-memory", "--only", "expect.cpus")


@pytest.fixture
def many_cpus(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text("schema_version = 1\n[cpu]\ncount = 9999\n")
    return path


def test_only_chooses_by_id_and_by_glob(trackbed: Command) -> None:
    done = trackbed("validate", "--json", "--only", "host.c*", "--only", "expect.cpus")
    ids = [record["id"] for record in json.loads(done.stdout)["results"]]
    assert done.returncode == 0, done.stderr
    assert set(ids) == {"expect.cpus", *(each.id for each in CHECKS if each.id.startswith("host.c"))}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--only", "host.cpu"), "did you mean `host.cpus`?"),
        (("--only", "hots.*"), "an id, or a glob"),
        (("--only", "host.cpus", "--level", "image"), "add --level node"),
        (("--junit", "no/such/folder/out.xml"), "its folder does not exist"),
        (("--expect", "none.toml"), "none.toml: cannot be read"),
        (("--learn", __file__), "exists already"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_checked(
    trackbed: Command, words: tuple[str, ...], says: str
) -> None:
    done = trackbed("validate", *words)
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_an_expectation_file_with_a_mistake_exits_2_with_its_line(trackbed: Command, many_cpus: Path) -> None:
    many_cpus.write_text("schema_version = 1\n[cpu]\ncuont = 2\n")
    done = trackbed("validate", *QUICK, "--expect", many_cpus)
    assert done.returncode == 2
    assert f"{many_cpus}:3: `cpu.cuont` is unknown" in done.stderr


def test_one_run_is_told_in_every_format(trackbed: Command, many_cpus: Path, tmp_path: Path) -> None:
    files = {name: tmp_path / f"out.{name}" for name in ("json", "junit", "prometheus", "html")}
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    done = trackbed("validate", *QUICK, "--expect", many_cpus, *options)
    assert done.returncode == 2, done.stderr
    assert done.stdout.splitlines()[0].split()[:2] == ["fail", "expect.cpus"]
    assert "9999 expected" in done.stdout
    document = json.loads(files["json"].read_text())
    states = {record["id"]: record["status"] for record in document["results"]}
    assert states == {"expect.cpus": "fail", "host.locked-memory": "pass"}
    junit = ElementTree.parse(files["junit"]).getroot()
    assert [case.get("name") for case in junit.iter("testcase") if case.find("failure") is not None] == ["expect.cpus"]
    metrics = parsed(files["prometheus"].read_text())
    assert metrics["trackbed_check_status"][(("id", "expect.cpus"), ("family", "expect"))] == 2
    assert metrics["trackbed_validation_exit_code"] == {(): 2}
    assert "1 failed" in files["html"].read_text()
    assert not list(tmp_path.glob(".*partial*"))


def test_json_on_the_screen_is_json_alone_and_fits_its_schema(trackbed: Command) -> None:
    done = trackbed("validate", *QUICK, "--json", "--strict")
    wanted = json.loads(trackbed("validate", "--schema").stdout)
    assert done.returncode == 0, done.stderr
    assert mistakes(json.loads(done.stdout), wanted, wanted) == []


@pytest.mark.parametrize("terminal", [False, True])
def test_what_starts_something_expensive_shows_the_checks_as_they_come(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [check for check in CHECKS if check.family in ("host", "expect")]
    monkeypatch.setattr(runner, "checks", lambda *_: tuple(chosen))
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(terminal)))
    results = check_machine(tmp_path)
    assert {each.id for each in results} == {check.id for check in chosen}
    shown = capsys.readouterr().out
    judged = [each.id for each in results if each.status != "skip"]
    bar = re.findall(r"checking the machine .*?(\d+)/(\d+)", shown)
    assert f"release {release_name()} on " in shown
    if terminal:
        assert bar[-1] == (str(len(chosen)), str(len(chosen)))
    else:
        assert (bar, [line.split()[1] for line in shown.splitlines()[: len(judged)]]) == ([], judged)


def test_only_strict_fails_on_a_warning(trackbed: Command) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))  # what a login gives; the command inherits it
    try:
        codes = [trackbed("validate", "--only", "host.open-files", *more).returncode for more in ((), ("--strict",))]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert codes == [0, 1]


def test_a_file_that_cannot_be_written_is_one_error(trackbed: Command, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    done = trackbed("validate", *QUICK, "--html", tmp_path / "folder")
    assert done.returncode == 2
    assert "is a directory" in done.stderr


def test_verbose_shows_what_was_seen(trackbed: Command) -> None:
    short, long = (trackbed("validate", *QUICK, *more).stdout for more in ((), ("--verbose",)))
    assert "pass  host        1  locked-memory" in short
    assert re.search(r"^pass  host\.locked-memory +\S+ \S+;", long, re.MULTILINE)


def test_the_list_names_and_counts_every_check(trackbed: Command) -> None:
    lines = trackbed("validate", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == [each.id for each in CHECKS]
    counted = [sum(each.proof == proof for each in CHECKS) for proof in ("real", "mixed", "fixture")]
    assert lines[-1].startswith("{} checks: {} real, {} mixed, {} fixture;".format(len(CHECKS), *counted))
    image = trackbed("validate", "--list", "--level", "image").stdout.splitlines()
    assert len(image) - 1 == sum("image" in each.levels for each in CHECKS)


def test_the_docs_are_printed_as_they_are_kept(trackbed: Command) -> None:
    assert trackbed("validate", "--docs").stdout == (ROOT / DOCS).read_text("utf-8")


def test_the_image_level_needs_no_device(trackbed: Command) -> None:
    done = trackbed("validate", "--level", "image", "--json")
    document = json.loads(done.stdout)
    assert document["level"] == "image"
    assert [record for record in document["results"] if record["status"] in ("fail", "error")] == []
    assert done.returncode == 0


def test_a_node_that_learned_meets_its_own_file_and_another_does_not(trackbed: Command, tmp_path: Path) -> None:
    site = tmp_path / "learned.toml"
    learned = trackbed("validate", "--only", "host.locked-memory", "--learn", site)
    assert learned.returncode == 0, learned.stdout + learned.stderr
    assert f"wrote {site}" in learned.stdout
    assert trackbed("validate", "--only", "expect.*", "--expect", site).returncode == 0
    site.write_text(re.sub(r"^minimum_gib = .*", "minimum_gib = 1e6", site.read_text(), count=1, flags=re.MULTILINE))
    done = trackbed("validate", "--only", "expect.*", "--expect", site, "--json")
    bad = [record for record in json.loads(done.stdout)["results"] if record["status"] == "fail"]
    assert (done.returncode, [record["id"] for record in bad]) == (2, ["expect.memory"])
    assert re.fullmatch(r"[\d.]+ GiB, 1e\+06 GiB expected", bad[0]["observed"])


def test_nothing_is_learned_from_a_node_that_is_not_good(trackbed: Command, many_cpus: Path, tmp_path: Path) -> None:
    done = trackbed("validate", *QUICK, "--expect", many_cpus, "--learn", tmp_path / "new.toml")
    assert done.returncode == 2
    assert "this node is not good (expect.cpus)" in done.stderr
    assert not (tmp_path / "new.toml").exists()


# --- Slurm, by a stand-in for scontrol that records what it is told ---


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in's folder; it is first on PATH, here and for the command."""
    (tmp_path / "node").write_text((FAKE / "node.txt").read_text())
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path))
    monkeypatch.setenv("SLURMD_NODENAME", "node017")
    monkeypatch.setenv("PATH", f"{FAKE}:/usr/bin:/bin")
    return tmp_path


def shown(node: Path) -> slurm.Node:
    return slurm.parse("node017", (node / "node").read_text())


def updates(node: Path) -> list[list[str]]:
    """What scontrol was told to change."""
    calls = (node / "calls").read_text() if (node / "calls").exists() else ""
    return [words.splitlines() for words in re.findall(r"^update\n((?:\w+=.*\n)+)", calls, re.MULTILINE)]


def made(status: str, id: str = "host.shared-memory", observed: str = "64 MiB in /dev/shm") -> Result:
    return result(check(id), Outcome(status=status, observed=observed), host="h")  # type: ignore[arg-type]


REASON = "trackbed: host.shared-memory: 64 MiB in /dev/shm"


def test_a_failed_check_drains_the_node_with_its_reason(node: Path) -> None:
    assert slurm.drain([made("fail")]) == f"slurm: node017 drained: {REASON}"
    assert updates(node) == [["NodeName=node017", "State=DRAIN", f"Reason={REASON}"]]
    assert shown(node) == slurm.Node(name="node017", state="IDLE+DRAIN", reason=REASON)


@pytest.mark.parametrize("statuses", [["pass"], ["warn", "skip"], ["error"]])
def test_only_a_failure_drains(node: Path, statuses: list[str]) -> None:
    assert slurm.drain([made(status) for status in statuses]) == ""
    assert not (node / "calls").exists()


def test_a_node_that_is_drained_for_the_same_reason_is_left_alone(node: Path) -> None:
    slurm.drain([made("fail")])
    assert slurm.drain([made("fail")]).startswith("slurm: node017 is drained already")
    assert len(updates(node)) == 1


def test_our_own_reason_may_change(node: Path) -> None:
    slurm.drain([made("fail")])
    slurm.drain([made("fail", "host.cpus", "half a CPU"), made("fail")])
    assert shown(node).reason == "trackbed: host.cpus: half a CPU (+1 more)"


def test_a_reason_that_is_not_ours_is_never_touched(node: Path) -> None:
    with (node / "node").open("a") as file:
        file.write("   Reason=NHC: bad fan [root@2026-11-30T10:00:00]\n")
    before = shown(node)
    assert "keeps the reason it has, it is not ours: NHC: bad fan" in slurm.drain([made("fail")])
    assert slurm.resume([made("pass")]) == ""
    assert (updates(node), shown(node)) == ([], before)


def test_a_reason_is_one_short_line(node: Path) -> None:
    seen = 'line one\nline "two" \\ ' + "très " * 100
    assert slurm.reason([made("fail", observed=seen)]).startswith(
        "trackbed: host.shared-memory: line one line two tr s tr s"
    )
    for count in range(1, 3):
        words = slurm.reason([made("fail", observed="x" * 500)] * count)
        assert len(words) == slurm.LONGEST
        assert words.endswith("..." if count == 1 else "... (+1 more)")


def test_our_own_drain_is_taken_back_when_its_check_is_good(node: Path) -> None:
    slurm.drain([made("fail")])
    assert slurm.resume([made("pass")]) == "slurm: node017 resumed: host.shared-memory is good again"
    assert updates(node)[-1] == ["NodeName=node017", "State=RESUME"]
    assert shown(node) == slurm.Node(name="node017", state="IDLE", reason="")
    assert slurm.resume([made("pass")]) == ""


@pytest.mark.parametrize(
    "results",
    [[made("pass", "host.cpus")], [made("skip")], [made("fail")], [made("pass"), made("error", "host.cpus")], []],
)
def test_a_node_is_not_resumed_by_what_says_nothing_about_its_failure(node: Path, results: list[Result]) -> None:
    slurm.drain([made("fail")])
    slurm.resume(results)
    assert len(updates(node)) == 1


def test_a_node_that_is_down_is_not_brought_up(node: Path) -> None:
    slurm.drain([made("fail")])
    (node / "node").write_text((node / "node").read_text().replace("State=IDLE+DRAIN", "State=DOWN"))
    assert slurm.resume([made("pass")]) == ""


def test_the_name_of_the_node_is_slurms() -> None:
    assert slurm.node_name({"SLURMD_NODENAME": "n7"}) == "n7"
    assert "." not in slurm.node_name({})


@pytest.mark.parametrize("text", ["", "garbage", "NodeName=x"])
def test_what_scontrol_shows_must_be_a_node(text: str) -> None:
    with pytest.raises(slurm.SlurmError, match="shows no state"):
        slurm.parse("x", text)


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(trackbed: Command, many_cpus: Path) -> Run:
    """The command with a failing or a good check; its exit code and what it says of Slurm."""

    def start(*words: str, good: bool = False) -> tuple[int, str]:
        if good:
            many_cpus.write_text(f"schema_version = 1\n[cpu]\ncount = {os.cpu_count()}\n")
        done = trackbed("validate", *QUICK, "--expect", many_cpus, "--json", *words)
        assert json.loads(done.stdout)
        return done.returncode, done.stderr

    return start


def test_drained_and_resumed_by_the_command(node: Path, run: Run) -> None:
    code, said = run("--slurm-drain")
    assert (code, said.startswith("slurm: node017 drained: trackbed: expect.cpus: ")) == (2, True)
    assert run("--slurm-drain", good=True) == (0, "")
    assert shown(node).state == "IDLE+DRAIN"  # good again, but nobody asked for more
    assert run("--slurm-drain", "--slurm-resume", good=True) == (
        0,
        "slurm: node017 resumed: expect.cpus is good again\n",
    )


def test_without_being_asked_nothing_is_drained(node: Path, run: Run) -> None:
    assert run() == (2, "")
    assert not (node / "calls").exists()


def test_slurm_that_is_away_changes_no_verdict(node: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (node / "refuses").touch()
    code, said = run("--slurm-drain")
    assert code == 2
    assert "Unable to contact slurm controller" in said
    assert said.endswith("the node is left as it is\n")
    monkeypatch.setenv("PATH", str(node))
    monkeypatch.setattr(slurm, "FOLDERS", ())
    with pytest.raises(slurm.SlurmError, match="there is no scontrol here"):
        slurm.drain([made("fail")])


# --- what other rooms do, asked for here ---


def test_left_overs_are_removed_by_name_and_nothing_else(trackbed: Command, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    old, young = runs / ".trackbed-validate-1", runs / ".trackbed-validate-2"
    for folder in (old, young):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    done = trackbed("validate", "--clean")
    assert done.returncode == 0
    assert f"removed {old}" in done.stdout
    assert (old.exists(), young.exists()) == (False, True)


def test_a_data_set_that_is_named_is_scanned(trackbed: Command, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n{"a"\n')
    done = trackbed("validate", "--only", "data.jsonl", "--data", tmp_path / "bad.jsonl", "--json")
    (record,) = json.loads(done.stdout)["results"]
    assert (done.returncode, record["status"]) == (2, "fail")


def test_a_baseline_is_read_before_and_needs_figures(trackbed: Command, tmp_path: Path) -> None:
    missing = trackbed("validate", *QUICK, "--baseline", tmp_path / "none.json")
    assert (missing.returncode, missing.stdout) == (2, "")
    empty = trackbed("validate", *QUICK, "--save-baseline", tmp_path / "new.json")
    assert empty.returncode == 2
    assert "add --level deep" in empty.stderr
    assert not (tmp_path / "new.json").exists()


def test_a_fleet_is_held_side_by_side(trackbed: Command, many_cpus: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.json" for name in ("good", "bad")]
    for path, more in zip(files, ((), ("--expect", many_cpus)), strict=True):
        trackbed("validate", *QUICK, "--json", path, *more)
        document = json.loads(path.read_text())
        path.write_text(json.dumps({**document, "host": path.stem}))
    done = trackbed("fleet", *files, "--html", tmp_path / "fleet.html")
    assert done.returncode == 2
    assert re.search(r"fail +expect\.cpus: bad", done.stdout)
    assert "expect.cpus" in (tmp_path / "fleet.html").read_text()
    assert trackbed("fleet", many_cpus).returncode == 3
