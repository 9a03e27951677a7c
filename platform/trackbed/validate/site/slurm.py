"""Slurm: take a node that failed out of service, with a reason an operator can act on, and bring back only our own.

Slurm throws a health check's exit code away and gives a prolog no PATH, so both matter here: the node is drained by us,
and scontrol is looked for where sites install it. A reason that does not begin with `trackbed:` is another tool's or a
person's: it is never replaced.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trackbed.validate import Result

PREFIX = "trackbed:"
# What `sinfo -R` and an operator's terminal can take.
LONGEST = 160
SECONDS = 10.0
FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin", "/opt/slurm/current/bin")


@dataclass(frozen=True, kw_only=True)
class Node:
    """What Slurm says of a node; the reason without the `[user@time]` that Slurm adds."""

    name: str
    state: str
    reason: str

    @property
    def ours(self) -> bool:
        return self.reason.startswith(PREFIX)


class SlurmError(Exception):
    """scontrol is not here, did not answer or refused; its message is one line."""


def drain(results: Sequence[Result]) -> str:
    """Drain this node for the first check that failed; what was done, in a line, empty when nothing failed.

    A check that could not be run (error) drains nothing: a broken validator must not empty a cluster.
    """
    failed = [result for result in results if result.status == "fail"]
    if not failed:
        return ""
    wanted, node = reason(failed), _node()
    if node.reason and not node.ours:
        return f"slurm: {node.name} keeps the reason it has, it is not ours: {node.reason}; nothing drained"
    if node.reason == wanted and "DRAIN" in node.state:
        return f"slurm: {node.name} is drained already: {wanted}"
    _scontrol("update", f"NodeName={node.name}", "State=DRAIN", f"Reason={wanted}")
    return f"slurm: {node.name} drained: {wanted}"


def resume(results: Sequence[Result]) -> str:
    """Bring this node back when we drained it and the check that we drained it for is good now."""
    if any(result.status in ("fail", "error") for result in results):
        return ""
    node = _node()
    if not node.ours or "DRAIN" not in node.state:
        return ""
    culprit = node.reason.removeprefix(PREFIX).strip().partition(":")[0]
    if not any(result.id == culprit and result.status in ("pass", "warn") for result in results):
        return f"slurm: {node.name} stays drained: {culprit} was not checked now; {node.reason}"
    _scontrol("update", f"NodeName={node.name}", "State=RESUME")
    return f"slurm: {node.name} resumed: {culprit} is good again"


def reason(failed: Sequence[Result]) -> str:
    """`trackbed: host.shared-memory: 64 MiB in /dev/shm (+2 more)`, one line, no quotes, shortened."""
    first, more = failed[0], f" (+{len(failed) - 1} more)" if len(failed) > 1 else ""
    seen = " ".join(re.sub(r"""[^ -~]|["'\\]""", " ", first.observed).split())
    head = f"{PREFIX} {first.id}: "
    room = LONGEST - len(head) - len(more)
    return f"{head}{seen if len(seen) <= room else seen[: room - 3] + '...'}{more}"


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """As slurmd says in a prolog, else this host's name without its domain."""
    return environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


def _node() -> Node:
    name = node_name()
    return parse(name, _scontrol("show", "node", name))


def parse(name: str, shown: str) -> Node:
    """Read `scontrol show node NAME`."""
    state = re.search(r"\bState=(\S+)", shown)
    if not state:
        raise SlurmError(f"scontrol show node {name} shows no state: {' '.join(shown.split())[:80]}")
    found = re.search(r"^\s*Reason=(.*)$", shown, re.MULTILINE)
    words = re.sub(r"\s*\[[^\[\]@]+@[^\[\]]+\]\s*$", "", found[1]) if found else ""
    return Node(name=name, state=state[1], reason="" if words.strip() in ("(null)", "none") else words.strip())


def _scontrol(*words: str) -> str:
    """What scontrol prints. Raises SlurmError."""
    program = shutil.which("scontrol", path=os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS]))
    if program is None:
        raise SlurmError("there is no scontrol here")
    try:
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"scontrol did not answer within {SECONDS:g} s") from error
    except OSError as error:
        raise SlurmError(f"{program}: {error.strerror}") from error
    if done.returncode:
        raise SlurmError(f"scontrol {words[0]}: {' '.join((done.stderr or done.stdout).split()) or done.returncode}")
    return done.stdout
