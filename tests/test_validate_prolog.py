"""`trackbed validate` where nobody watches: a Slurm prolog, a full disk, a mount that hangs, a kill in the middle."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from conftest import ROOT, Command, environ
from test_validate_cli import FAKE
from trackbed.release.probe import command_version
from trackbed.validate import Outcome, result, runner
from trackbed.validate.catalogue import CHECKS
from validate_rules import alive, check

TRACKBED = [sys.executable, "-m", "trackbed", "validate"]


def until(there: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end
        time.sleep(0.02)


# --- a prolog's environment ---


def test_a_program_is_found_and_starts_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm gives a prolog none, and mpirun says `Unable to get the user home directory`: a good node would fail."""
    monkeypatch.delenv("HOME")
    assert command_version("mpirun --version").version


def test_a_log_on_a_full_disk_keeps_no_bad_node_in_service(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text("schema_version = 1\n[cpu]\ncount = 9999\n")
    names = {"SLURMD_NODENAME": "gpu01", "PATH": f"{FAKE}:{os.environ['PATH']}", "FAKE_SLURM": str(tmp_path)}
    words = ["--only", "expect.cpus", "--expect", str(site), "--slurm-drain"]
    for more, code in (([], 2), (["--json"], 2)):
        (tmp_path / "node").write_text((FAKE / "node.txt").read_text())
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*TRACKBED, *words, *more], env=environ(tmp_path, **names), stdout=full, stderr=subprocess.PIPE,
                text=True,
            )  # fmt: skip
        assert done.returncode == code
        assert "Traceback" not in done.stderr
        assert "standard output" in done.stderr
        assert "drained: trackbed: expect.cpus" in done.stderr


def test_a_reader_that_is_gone_does_not_change_the_verdict(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*TRACKBED, "--only", "host.cpus"], env=environ(tmp_path), stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_path_that_is_no_text_is_told_in_every_format(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files = {name: tmp_path / f"out.{name}" for name in ("json", "junit", "prometheus", "html")}
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    folder = os.fsencode(tmp_path) + b"/file/b\xff"
    done = subprocess.run(
        [*map(os.fsencode, [*TRACKBED, "--only", "storage.commit", *options, "--output"]), folder],
        env=environ(tmp_path), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    (record,) = json.loads(files["json"].read_text("utf-8"))["results"]
    assert "b\\udcff" in record["observed"]
    assert all(path.exists() for path in files.values())


def test_junit_names_the_encoding_it_has(tmp_path: Path) -> None:
    """Not that of the locale, which a parser would believe."""
    path, plain = tmp_path / "out.xml", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [*TRACKBED, "--only", "host.cpus", "--junit", str(path)]
    subprocess.run(command, env=environ(tmp_path, **plain), check=True, capture_output=True)
    assert path.read_bytes().startswith(b"<?xml version='1.0' encoding='utf-8'?>")
    assert ElementTree.parse(path).getroot().tag == "testsuites"


# --- one cause that another check speaks for ---


def test_a_check_that_is_asked_for_alone_brings_the_one_that_speaks_for_its_cause(trackbed: Command) -> None:
    done = trackbed("validate", "--only", "comm.gloo-all-reduce", "--json", GLOO_SOCKET_IFNAME="eth9")
    found = {record["id"]: record["status"] for record in json.loads(done.stdout)["results"]}
    assert found == {"comm.gloo-all-reduce": "skip", "network.host-name": "fail"}
    assert done.returncode == 2


def test_every_check_that_is_named_anywhere_exists() -> None:
    known, families = {each.id for each in CHECKS}, "|".join({each.family for each in CHECKS})
    source = "".join(path.read_text("utf-8") for path in (ROOT / "platform/trackbed/validate").rglob("*.py"))
    said = re.findall(
        rf"(?<![\w./-])((?:{families})\.[a-z]+(?:-[a-z]+)*)(?: (?:and \S+ )?says?\b|, which| is then)", source
    )
    said += re.findall(rf"\bsee ((?:{families})\.[a-z]+(?:-[a-z]+)*)", source)
    assert len(said) > 20
    assert set(said) - known == set()


# --- a file system that hangs ---


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes a folder of a type of file system that does not answer."""
    started: list[subprocess.Popen[str]] = []

    def mount(kind: str) -> Path:
        folder = tmp_path / "hung"
        folder.mkdir()
        command = [sys.executable, str(ROOT / "tests/fixtures/hang.py"), str(folder), kind]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        stdout = started[-1].stdout
        if not stdout or stdout.readline() != "mounted\n":
            pytest.skip("FUSE cannot be mounted here: root and /dev/fuse are needed")
        return folder

    yield mount
    for process in started:
        process.kill()
        process.communicate()
        subprocess.run(["umount", "--lazy", tmp_path / "hung"], capture_output=True)


@pytest.mark.parametrize(
    ("kind", "culprit"), [("fuse.sshfs", "storage.network-file-systems"), ("fuse", "storage.commit")]
)
def test_a_mount_that_hangs_is_one_failure_and_hangs_nobody(
    tmp_path: Path, hung: Callable[[str], Path], kind: str, culprit: str
) -> None:
    only = [
        word for name in ("storage.*", "checkpoint.*", "limits.*", "container.file-times") for word in ("--only", name)
    ]
    command = [*TRACKBED, *only, "--json", "--output", str(hung(kind) / "runs")]
    child = subprocess.Popen(command, env=environ(tmp_path), stdout=subprocess.PIPE, text=True)
    try:
        said, _ = child.communicate(timeout=60)
    finally:
        child.kill()
    found = {record["id"]: record for record in json.loads(said)["results"]}
    assert [name for name, record in found.items() if record["status"] in ("fail", "error")] == [culprit]
    assert "limits.stuck-processes" not in [name for name, record in found.items() if record["status"] == "warn"]
    assert found["checkpoint.newest"]["status"] == "skip"
    assert culprit in found["checkpoint.newest"]["remedy"]
    assert child.returncode == 2


def test_no_check_may_take_longer_than_a_prolog_has() -> None:
    node = [each for each in CHECKS if "node" in each.levels]
    assert max(runner._deadline(each, "node") for each in node) == 180
    assert max(runner._deadline(each, "deep") for each in node) == 3600


def test_a_process_that_ignores_being_killed_is_left_behind(tmp_path: Path, hung: Callable[[str], Path]) -> None:
    """A check that no guard keeps from a mount that hangs sleeps in the kernel, and its end never comes."""
    caller = running(tmp_path, "fake.touch", hung("fuse") / "runs")
    try:
        said, _ = caller.communicate(timeout=30)
    finally:
        caller.kill()
    assert said == "error no answer within 1 s\n"


# --- the end of the caller ---


CALLER = """
import sys
from pathlib import Path
from trackbed.validate import Context, runner
for done in runner.stream(Context(output=Path(sys.argv[2])), "validate_fakes", only={sys.argv[1]}):
    print(done.status, done.observed, flush=True)
"""


def running(folder: Path, only: str, output: Path) -> subprocess.Popen[str]:
    """A program that runs one of the checks that misbehave."""
    paths = os.pathsep.join([environ(folder)["PYTHONPATH"], str(Path(__file__).parent)])
    command = [sys.executable, "-c", CALLER, only, str(output)]
    return subprocess.Popen(command, env=environ(folder, PYTHONPATH=paths), stdout=subprocess.PIPE, text=True)


def test_a_caller_that_is_killed_takes_its_checks_with_it(tmp_path: Path) -> None:
    caller = running(tmp_path, "fake.hang", tmp_path)
    until((tmp_path / "stray").exists)
    (child,) = (each.pid for each in psutil.Process(caller.pid).children())
    caller.kill()
    caller.communicate()
    until(lambda: not alive(child), 5)
    os.kill(int((tmp_path / "stray").read_text("utf-8")), signal.SIGKILL)


def test_a_command_that_is_told_to_end_ends_all_it_started(tmp_path: Path) -> None:
    command = subprocess.Popen([*TRACKBED, "--only", "stack.*"], env=environ(tmp_path), stdout=subprocess.DEVNULL)
    until(lambda: len(psutil.Process(command.pid).children(recursive=True)) > 2)
    started = psutil.Process(command.pid).children(recursive=True)
    command.terminate()
    assert command.wait(20) == 128 + signal.SIGTERM
    until(lambda: not any(alive(each.pid) for each in started), 5)


def test_what_a_result_says_can_be_written() -> None:
    done = result(check("host.cpus"), Outcome(status="pass", observed="b\udcff"), host="h")
    assert done.observed.encode("utf-8") == b"b\\udcff"
