"""`trackbed submit --profile nsys`: the command, the reports, no nsys at all, and what a profile must not cost.

Whether the real nsys takes this command no test can say: it is not in the locked files. The fixture does what it was
seen to do.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Command
from runs import ranks_of, stop_at
from trackbed import folders
from trackbed.submit import nsys
from trackbed.submit.plan import Plan
from trackbed.submit.run import Run

MakeJob = Callable[..., Path]

# fixture: stands for nsys. It records its arguments and runs the program in a session of its own and with a umask of 0,
# as nsys 2022.4 does; told to stop it passes that on and ends at once with 0. Its report is written at the end.
FIXTURE = """#!/bin/sh
[ "$1" = --version ] && exit 0
printf '%s\\n' "$@" >"${0%/*}/arguments"
while [ "$1" != -o ]; do shift; done
report=$2
shift 2
umask 0
setsid "$@" &
trap 'kill $!; exit 0' TERM
wait $!
code=$?
echo fixture >"$report.nsys-rep"
exit $code
"""
BROKEN = "#!/bin/sh\necho 'libssh.so.4: cannot open shared object file' >&2\nexit 127\n"


def put(folder: Path, script: str) -> Path:
    folder.mkdir()
    path = folder / "nsys"
    path.write_text(script, "utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nsys on PATH."""
    tool = put(tmp_path / "tools", FIXTURE)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    return tool


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it, and nothing beside the interpreter either."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "empty" / "python"))
    return tmp_path


def planned(run: Path) -> Plan:
    command = [sys.executable, "-m", "torch.distributed.run", str(run / "job.yaml")]
    return Plan(str(run), "", "", 0, 1, 1, 1, 1.0, {}, 0.0, 0.0, {}, command, {})


def wrapped(run: Path) -> Plan:
    return nsys.wrap(planned(run), Run(run))


def test_a_dry_run_shows_the_whole_command_and_writes_nothing(
    fake: Path, trackbed: Command, job: MakeJob, tmp_path: Path
) -> None:
    path = job()
    plain, profiled = (
        trackbed("submit", path, "--dry-run", "--run-name", "planned", *more) for more in ((), ("--profile", "nsys"))
    )
    assert profiled.returncode == 0, profiled.stderr
    plain_words, words = (shlex.split(done.stdout.split("command:\n", 1)[1]) for done in (plain, profiled))
    at = words.index(str(fake))
    inner = plain_words[at:]
    assert words[at + 1] == "profile"
    assert words[words.index("-o") + 1] == str(tmp_path / "runs" / "planned" / "profile" / "report-1")
    assert {"--sample=none", "--cpuctxsw=none"} <= set(words)
    assert words[-len(inner) :] == inner
    assert not (tmp_path / "runs").exists()
    assert not (fake.parent / "arguments").exists()


def test_without_nsys_one_line_says_so_and_the_command_is_the_plain_one(
    trackbed: Command, job: MakeJob, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    done = trackbed("submit", job(), "--dry-run", "--profile", "nsys", PATH=str(tmp_path / "empty"))
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "profile" in line]
    for words in ("warning: this run is not profiled", "neither on PATH nor in", "gpu image", "nsight-systems package"):
        assert words in line
    assert "--trace" not in done.stdout


def test_the_plan_keeps_the_reason(bare: Path) -> None:
    plan = wrapped(bare / "run")
    assert plan.command == planned(bare / "run").command
    kept = json.loads(plan.to_json())
    assert kept["profile"] == ""
    assert "not profiled" in kept["profile_note"]


def test_an_nsys_that_does_not_start_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(put(tmp_path / "tools", BROKEN).parent))
    plan = wrapped(tmp_path / "run")
    assert "does not start: libssh.so.4: cannot open" in plan.profile_note
    assert plan.command == planned(tmp_path / "run").command


def test_an_nsys_beside_the_interpreter_is_found(bare: Path) -> None:
    (bare / "empty").rmdir()
    tool = put(bare / "empty", "#!/bin/sh\n")
    assert wrapped(bare / "run").command[0] == str(tool)


def test_cuda_is_traced_where_its_driver_is(fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for driver, traces in ((tmp_path / "none", "--trace=nvtx,osrt"), (fake, "--trace=cuda,nvtx,osrt")):
        monkeypatch.setattr(nsys, "DRIVER", driver)
        assert traces in wrapped(tmp_path / "run").command


@pytest.mark.parametrize("left", ["report-1.nsys-rep", "report-1.qdstrm"])
def test_a_report_is_never_written_over(fake: Path, tmp_path: Path, left: str) -> None:
    run = tmp_path / "50%"
    (run / "profile").mkdir(parents=True)
    (run / "profile" / left).touch()
    plan = wrapped(run)
    assert plan.profile == str(run / "profile" / "report-2.nsys-rep")
    # To nsys a single % begins a placeholder.
    assert plan.command[plan.command.index("-o") + 1] == f"{tmp_path}/50%%/profile/report-2"


def test_what_became_of_the_report_is_said(fake: Path, tmp_path: Path) -> None:
    plan = wrapped(tmp_path / "run")
    report = Path(plan.profile)
    report.parent.mkdir(parents=True)
    assert nsys.outcome(plan).startswith("warning: nsys left no report")
    report.with_suffix(".qdstrm").touch()
    assert nsys.outcome(plan).startswith(f"profile: {report.with_suffix('.qdstrm')} (as recorded")
    report.touch()
    assert nsys.outcome(plan).startswith(f"profile: {report} ")


def test_another_profiler_is_wrong_usage(trackbed: Command, job: MakeJob) -> None:
    done = trackbed("submit", job(), "--profile", "perf")
    assert done.returncode == 2
    assert "'perf' is not 'nsys'" in done.stderr


def test_a_profiled_run_that_is_stopped_leaves_a_checkpoint_and_a_report(
    fake: Path, job: MakeJob, trackbed: Command, tmp_path: Path
) -> None:
    path = job(
        train={"steps": 500},
        checkpoint={"every": 500, "keep": 1},
        evaluate={"every": 500, "samples": 2},
        resources={"ranks": 1},
    )
    words = ["submit", str(path), "--run-name", "stopped", "--skip-validation", "--profile", "nsys"]
    code = stop_at(tmp_path, words, "step 4/500", lambda process: process.send_signal(signal.SIGTERM))
    run = tmp_path / "runs" / "stopped"
    assert code == 1
    assert json.loads((run / "failure.json").read_text())["id"] == "run.interrupted"
    (saved,) = (run / "checkpoints").glob("step-*")
    assert ranks_of(run) == []
    assert (run / "profile" / "report-1.nsys-rep").read_text() == "fixture\n"
    plan = json.loads((run / "plan.json").read_text())
    assert (fake.parent / "arguments").read_text().splitlines() == plan["command"][1:]
    assert saved.stat().st_mode == tmp_path.joinpath("runs").stat().st_mode, "nsys's umask reached the ranks"
    again = trackbed("submit", "--resume", run, "--dry-run", "--profile", "nsys")
    assert f"{run}/profile/report-2 " in again.stdout


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for content in ("first é\n", b"second\n"):
        folders.replace(path, content)
        assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UnicodeEncodeError):
        folders.replace(path, "half a character: \ud800")
    (tmp_path / "folder" / "full").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        folders.replace(tmp_path / "folder", "a file")
    assert path.read_bytes() == b"second\n"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder", "plan.json"]
