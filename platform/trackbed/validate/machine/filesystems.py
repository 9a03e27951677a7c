"""storage.*: whether the file systems have room, and whether the ones behind a network still answer."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trackbed.validate import GIB, MIB, Check, Context, Outcome, Status, amount, number, skip, unreadable
from trackbed.validate.machine.mounts import NETWORK, PATIENCE, PROBE, must_answer, unescaped

# A checkpoint is written next to the ones that are kept, and grows a little: names, padding, random states.
SLACK = 1.2
# Shares of a large disk say nothing: 4 TB that are 96 % full still have room for a checkpoint. So both must be true.
USED_WARN, USED_FAIL, FEW_BYTES = 80.0, 95.0, 10 * GIB
LEAST_BYTES = 128 * MIB
INODES_WARN, INODES_FAIL = (10.0, 100_000), (2.0, 10_000)
LEAST_INODES = 100
SLOW = 1.0  # seconds after which a file system is slow
DENIED = "Permission denied"


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there; Unreachable when its file system hangs."""
    folder = folder.absolute()
    must_answer(folder)
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def measure_space(context: Context) -> dict[str, Any]:
    """Bytes free and used where runs are written, and what a job's checkpoints need, if an expectation says.

    `expect["checkpoint"]` is {"bytes": one checkpoint, "keep": how many stay}.
    """
    folder = existing(context.output)
    stat = os.statvfs(folder)
    free, size, unused = (stat.f_frsize * blocks for blocks in (stat.f_bavail, stat.f_blocks, stat.f_bfree))
    wanted = context.expect.get("checkpoint") or {}
    return {
        "folder": str(folder),
        "free": free,
        "used": size - unused,
        "bytes": wanted.get("bytes"),
        "keep": wanted.get("keep", 2),
    }


def judge_space(space: object) -> Outcome:
    """With a job: room for the checkpoints it keeps and one more. Without: a full disk, by share and by size."""
    found = space if isinstance(space, Mapping) else {}
    free, used, keep = (number(found.get(name)) for name in ("free", "used", "keep"))
    wanted = found.get("bytes")
    if free is None or used is None or not keep or (wanted is not None and not number(wanted)):
        return unreadable("the space for checkpoints", space)
    share = 100 * used / (used + free) if used + free else 100.0
    need = _need(number(wanted) or 0.0, keep)
    least = max(need, LEAST_BYTES)
    full, tight = share >= USED_FAIL and free < FEW_BYTES, share >= USED_WARN and free < FEW_BYTES
    status: Status = "fail" if free < least or full else "warn" if tight else "pass"
    sum_ = f", {keep + 1:g} checkpoints of {amount(need / SLACK / (keep + 1))} and 20 % are {amount(need)}"
    observed = f"{amount(free)} free, {share:.0f} % used in {found.get('folder')}{sum_ if need else ''}"
    expected = f"{amount(least)} free" + ("" if need else f"; not {USED_WARN:g} % used with under 10 GiB free")
    remedy = (
        "" if status == "pass" else f"free space there (trackbed validate names left-overs; du -xh --max-depth=2 "
        f"{found.get('folder')} | sort -h), or set TRACKBED_RUNS or --output to a larger file system; "
        "docker run -v /large/disk:/var/lib/trackbed/runs"
    )  # fmt: skip
    return Outcome(status=status, observed=observed, expected=expected, remedy=remedy)


def _need(checkpoint: float, keep: float) -> float:
    return (keep + 1) * checkpoint * SLACK


def measure_inodes(context: Context) -> dict[str, Any]:
    """Files that may still be made where runs are written; a total of 0 where the file system does not count them."""
    folder = existing(context.output)
    stat = os.statvfs(folder)
    return {"folder": str(folder), "free": stat.f_favail, "total": stat.f_files}


def judge_inodes(inodes: object) -> Outcome:
    """A file system without inodes says `No space left on device` while df shows space."""
    found = inodes if isinstance(inodes, Mapping) else {}
    free, total = number(found.get("free")), number(found.get("total"))
    if free is None or total is None or free > total > 0:
        return unreadable("the number of inodes", inodes)
    if not total:
        return skip("this file system does not count inodes, so they cannot run out", "nothing to do")
    share = 100 * free / total
    few = {limit: share < limit[0] and free < limit[1] for limit in (INODES_WARN, INODES_FAIL)}
    status: Status = "fail" if few[INODES_FAIL] or free < LEAST_INODES else "warn" if few[INODES_WARN] else "pass"
    folder = found.get("folder")
    remedy = (
        "" if status == "pass" else f"remove small files (find {folder} -xdev -printf '%h\\n' | sort | uniq -c | "
        "sort -n | tail shows where they are), or set TRACKBED_RUNS to another file system"
    )  # fmt: skip
    return Outcome(
        status=status,
        observed=f"{free:.0f} of {total:.0f} inodes free ({share:.0f} %) in {folder}",
        expected=f"{LEAST_INODES} or more, and not both under {INODES_WARN[0]:g} % and under {INODES_WARN[1]}",
        remedy=remedy,
    )


def measure_network(
    context: Context, root: Path = Path("/"), probe: Sequence[str] = PROBE, patience: float = PATIENCE
) -> dict[str, Any]:
    """Ask every network file system for its size, each in a process of its own: one that hangs cannot be killed.

    `seconds` is None for one that did not answer in `patience` seconds.
    """
    mounts = list(_network_mounts(root))
    started = time.monotonic()
    # Else the reason comes in the language of whoever is logged in.
    words: dict[str, Any] = {"stderr": subprocess.PIPE, "text": True, "env": {**os.environ, "LC_ALL": "C"}}
    asked = [subprocess.Popen([*probe, mount["where"]], stdout=subprocess.DEVNULL, **words) for mount in mounts]
    for mount, child in zip(mounts, asked, strict=True):
        mount |= _answer(child, started, patience)
    return {"mounts": mounts, "lustre": _text(root / "sys/fs/lustre/health_check").strip()}


def judge_network(network: object) -> Outcome:
    """A mount that hangs stops a rank in the kernel, where no signal reaches it."""
    found = network if isinstance(network, Mapping) else {}
    mounts, lustre = found.get("mounts"), found.get("lustre")
    if not isinstance(mounts, list) or not isinstance(lustre, str):
        return unreadable("the network file systems", network)
    if any(not isinstance(mount, Mapping) or not isinstance(mount.get("where"), str) for mount in mounts):
        return unreadable("a network file system", mounts)
    # Another pod's or user's, below a folder that is closed to this one: no job of ours is on it.
    mounts = [mount for mount in mounts if not str(mount.get("error")).endswith(DENIED)]
    if not mounts and not lustre:
        return skip(
            "no network file system is mounted here", "nothing to do, unless runs or data should be on one: mount it"
        )
    failed = [text for mount in mounts if (text := _fault(mount))]
    failed += [f"Lustre says it is {lustre!r}"] if lustre not in ("", "healthy") else []
    warned = [text for mount in mounts if (text := _doubt(mount))]
    slowest = max((number(mount.get("seconds")) or 0.0 for mount in mounts), default=0.0)
    observed = "; ".join(failed or warned) or f"{len(mounts)} answer, the slowest in {slowest:.2g} s"
    remedy = (
        "ask for that mount to be repaired (umount -f -l, then mount again), or set TRACKBED_RUNS and TRACKBED_CACHE "
        "elsewhere" if failed else "mount NFS with `hard`; look at the server's load"
    )  # fmt: skip
    status: Status = "fail" if failed else "warn" if warned else "pass"
    expected = f"each answers within {SLOW:g} s, and NFS is mounted `hard`"
    return Outcome(
        status=status, observed=observed, expected=expected, remedy="" if status == "pass" else remedy
    )  # fmt: skip


def _fault(mount: Mapping[str, Any]) -> str:
    if mount.get("error"):
        return f"{mount['where']} ({mount.get('type')}): {mount['error']}"
    if number(mount.get("seconds")) is None:
        return f"{mount['where']} ({mount.get('type')}) does not answer within {PATIENCE:g} s"
    return ""


def _doubt(mount: Mapping[str, Any]) -> str:
    seconds = number(mount.get("seconds")) or 0.0
    if seconds > SLOW:
        return f"{mount['where']} ({mount.get('type')}) took {seconds:.2g} s to answer"
    if str(mount.get("type")).startswith("nfs") and "soft" in str(mount.get("options")).split(","):
        return f"{mount['where']} is mounted soft: a write that times out is lost"
    return ""


def _network_mounts(root: Path) -> Iterator[dict[str, Any]]:
    """Where, which type and with which options; of mounts at one place only the last is seen."""
    found: dict[str, dict[str, Any]] = {}
    for line in _text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) > 5 and len(tail) > 1 and tail[0] in NETWORK:
            where = unescaped(fields[4])
            found[where] = {"where": where, "type": tail[0], "options": ",".join([fields[5], *tail[2:]])}
    yield from found.values()


def _answer(child: subprocess.Popen[str], started: float, patience: float) -> dict[str, Any]:
    left = max(0.0, patience - (time.monotonic() - started))
    try:
        _, said = child.communicate(timeout=left)
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.wait(0.1)  # no longer: inside the kernel it may ignore even this
        if child.stderr:
            child.stderr.close()
        return {"seconds": None, "error": ""}
    error = (said.strip().splitlines() or ["it failed"])[-1] if child.returncode else ""
    return {"seconds": time.monotonic() - started, "error": error}


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""


CHECKS = (
    Check(
        id="storage.free-space",
        title="room for checkpoints",
        measure=measure_space,
        judge=judge_space,
        deadline=10,
        child="host",
        why="A disk that fills up during a save shows as `unexpected pos 128 vs 0` or `basic_ios::clear: iostream "
        "error`: neither says that the disk is full, and the steps since the last checkpoint are lost.",
        rule="With a job's size known: fails under (kept + 1) checkpoints and 20 %. Else fails under 128 MiB, and at "
        "95 % used with under 10 GiB free; warns at 80 % used with under 10 GiB free.",
    ),
    Check(
        id="storage.inodes",
        title="room for files",
        measure=measure_inodes,
        judge=judge_inodes,
        deadline=10,
        child="host",
        why="Without a free inode every write ends in `No space left on device`, although df shows free space.",
        rule="Fails under 100 free, and under 2 % when that is under 10 000; warns under 10 % when that is under "
        "100 000. Skipped where the file system counts none.",
    ),
    Check(
        id="storage.network-file-systems",
        title="network file systems answer",
        measure=measure_network,
        judge=judge_network,
        deadline=15,
        child="host",
        proof="mixed",
        why="A rank that touches a hung mount waits in the kernel for ever, without a message and beyond any signal; "
        "`Stale file handle` is what the lucky ones see. Soft NFS loses writes without telling the program.",
        rule="Fails when one does not answer within 5 s or answers with an error, or Lustre is not healthy; warns "
        "when one takes more than 1 s, or NFS is mounted `soft`. Skipped where there is none; one that this user may "
        "not look at counts as none. Checks that would hang on one are skipped.",
    ),
)
