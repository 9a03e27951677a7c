"""`trackbed validate` in containers that are really broken: the one right complaint, and a remedy that mends it.

Each row of CASES is an environment with one thing wrong, made by flags of `docker run` or by what somebody did in the
container. Held against a good container on the same machine, nothing but the named check may get worse. Then what
the remedy says is done, and the check has nothing more to say.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from broken_environments import CASES, Case, Run
from containers import output, run

pytestmark = pytest.mark.container

RANK = {"pass": 0, "skip": 0, "warn": 1, "fail": 2, "error": 3}
# What Docker before 23 does, on any engine: only who may trace processes may copy from them.
SECCOMP = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [
        {
            "names": ["process_vm_readv", "process_vm_writev"],
            "action": "SCMP_ACT_ERRNO",
            "excludes": {"caps": ["CAP_SYS_PTRACE"]},
        }
    ],
}


@dataclass(frozen=True, kw_only=True)
class Said:
    """What one validation came to, by check."""

    code: int
    results: dict[str, dict[str, Any]]

    def worse_than(self, other: Said) -> dict[str, str]:
        """What got worse, in a line a check."""
        return {
            name: f"{each['status']}: {each['observed']}"
            for name, each in self.results.items()
            if RANK[each["status"]] > RANK[other.results[name]["status"]]
        }


def validated(image: str, environment: Run, words: dict[str, str], only: str = "") -> Said:
    """Start it and validate in it: every check of level node, or the one that is named."""
    command = "trackbed validate --json" + (f" --only {only}" if only else "")
    flags = shlex.split(_filled(environment.flags, words))
    script = _filled(environment.script, words).replace("VALIDATE", command)
    # A good container's command is not a shell's.
    plain = shlex.split(command) if script == f"exec {command}" else ["sh", "-ec", script]
    done = run("docker", "run", "--rm", "--shm-size=1g", *flags, image, *plain)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        pytest.fail(
            f"docker run {shlex.join(flags)}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
    return Said(code=done.returncode, results={each["id"]: each for each in document["results"]})


def _filled(text: str, words: dict[str, str]) -> str:
    """The text with this machine's figures; other braces are a shell's or a pattern's."""
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return text


@pytest.fixture(scope="module")
def words(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What depends on the machine: its CPUs, a rank's share, far too many; limits it can raise; a profile, a volume."""
    cpus = int(output("docker", "info", "--format", "{{.NCPU}}"))
    profile = tmp_path_factory.mktemp("seccomp") / "profile.json"
    profile.write_text(json.dumps(SECCOMP), "utf-8")
    files = "--ulimit nofile=1048576:1048576"
    # An engine without CAP_SYS_RESOURCE gives no more than it has; then leaving the low limit out is all a user can do.
    refused = run("docker", "run", "--rm", *files.split(), "--entrypoint", "true", image).returncode
    share = str(max(1, cpus // 2))
    volume = f"trackbed-broken-{os.getpid()}"
    yield {
        "cpus": str(cpus),
        "share": share,
        "many": str(32 * cpus),
        "files": "" if refused else files,
        "seccomp": str(profile),
        "volume": volume,
    }
    run("docker", "volume", "rm", "--force", volume)


@pytest.fixture(scope="module")
def good(image: str) -> Callable[[str], Said]:
    """A container with nothing wrong but what this machine has wrong, by what is around it; each is started once."""
    return cache(lambda around: validated(image, Run(flags=around), {}))


def test_a_good_container_passes(good: Callable[[str], Said]) -> None:
    said = good("")
    bad = {name: each["observed"] for name, each in said.results.items() if each["status"] in ("fail", "error")}
    assert (said.code, bad) == (0, {})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_one_right_complaint_and_its_remedy(
    case: Case, image: str, good: Callable[[str], Said], words: dict[str, str]
) -> None:
    broken = validated(image, case.broken, words)
    assert set(broken.worse_than(good(case.around))) == {case.check}, broken.worse_than(good(case.around))
    said = broken.results[case.check]
    assert (said["status"], broken.code) == (case.status, 2 if case.status == "fail" else 0)
    assert re.search(_filled(case.observed, words), said["observed"]), said["observed"]
    assert _filled(case.remedy, words) in said["remedy"]
    mended = validated(image, case.mended, words, only=case.check)
    assert (mended.worse_than(good(case.around)), mended.code) == ({}, 0)


def test_every_row_is_an_environment_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len({case.broken for case in CASES}) == len(CASES) >= 20
