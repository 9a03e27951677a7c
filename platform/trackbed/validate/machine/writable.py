"""container.temporary-folder, container.caches, container.file-times: folders that libraries write to unasked."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trackbed.validate import MIB, Check, Context, Outcome, Status, amount, number, skip, unreadable
from trackbed.validate.machine.filesystems import existing
from trackbed.validate.machine.mounts import NETWORK, Unreachable, mount_of

TEMPORARY_FAIL, TEMPORARY_WARN = 64 * MIB, 256 * MIB
SKEW_SECONDS = 2.0
# Where shared objects are built, and where that is when no variable says so.
BUILDS = {
    "TORCH_EXTENSIONS_DIR": "~/.cache/torch_extensions",
    "TRITON_CACHE_DIR": "~/.triton/cache",
    "TORCHINDUCTOR_CACHE_DIR": "{tmp}/torchinductor_{user}",
}
KEPT = {"HOME": "~", "HF_HOME": "~/.cache/huggingface", "TRACKBED_CACHE": "~/.cache/trackbed"}
COMPILERS = ("cc", "gcc", "clang")
MOUNT = "docker run -v cache:{folder} or --tmpfs {folder}:exec; compose `volumes:`; Kubernetes: an emptyDir there"


def measure_temporary(context: Context, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What a file of 1 MiB in the temporary folder comes to, and the bytes free there."""
    folder = environment.get("TMPDIR") or "/tmp"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(MIB))
            file.flush()
        error = ""
    except OSError as failed:
        error = _name(failed)
    try:
        stat = os.statvfs(folder)
    except OSError:
        return {"folder": folder, "error": error or "ENOENT", "free": 0}
    return {"folder": folder, "error": error, "free": stat.f_bavail * stat.f_frsize}


def judge_temporary(found: object) -> Outcome:
    """Sockets, session folders, compilers' and downloads' files go there."""
    value = found if isinstance(found, Mapping) else {}
    folder, error, free = value.get("folder"), value.get("error"), number(value.get("free"))
    if not isinstance(folder, str) or not isinstance(error, str) or free is None:
        return unreadable("the temporary folder", found)
    expected = f"{amount(TEMPORARY_WARN)} or more free, and writable by uid {os.getuid()}"
    full = not error or error in ("ENOSPC", "EDQUOT")
    status: Status = "fail" if error or free < TEMPORARY_FAIL else "warn" if free < TEMPORARY_WARN else "pass"
    larger = f"free space in it, or docker run --tmpfs {folder}:size=1g; or -e TMPDIR=/a/larger/folder"
    open_ = f"docker run --tmpfs {folder} (mode 1777), or -e TMPDIR=/a/folder/of/uid/{os.getuid()}"
    return Outcome(
        status=status,
        observed=f"{amount(free)} free in {folder}" + (f": {error}" if error else ""),
        expected=expected,
        remedy="" if status == "pass" else larger if full else open_,
    )


def measure_caches(context: Context, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Each cache folder: whether a file can be made and mapped for execution in it, and whether anything builds."""
    offline = environment.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    return {
        "compiler": any(shutil.which(name) for name in filter(None, (environment.get("CC"), *COMPILERS))),
        "offline": offline,
        "folders": [_probe(name, folder, environment) for name, folder in _folders(environment)],
    }


def judge_caches(found: object) -> Outcome:
    """A folder for built code must be writable and executable where code is built; a model cache may be read-only."""
    value = found if isinstance(found, Mapping) else {}
    folders, compiler = value.get("folders"), value.get("compiler")
    if not isinstance(folders, Sequence) or not folders or not isinstance(compiler, bool):
        return unreadable("the cache folders", found)
    if any(not isinstance(one, Mapping) or not isinstance(one.get("folder"), str) for one in folders):
        return unreadable("a cache folder", folders)
    builds = [one for one in folders if one.get("builds") and (compiler or one.get("named"))]
    broken = [f"{_said(one)} {fault}" for one in builds if (fault := _fault(one))]
    idle = [one for one in folders if not one.get("builds") and one.get("error")]
    doubtful = [f"{_said(one)} is not writable ({one['error']})" for one in idle if _needed(one, value)]
    doubtful += [f"{_said(one)} is on {one.get('kind')}: builds there are slow and may hang" for one in builds
                 if one.get("kind") in NETWORK]  # fmt: skip
    if not broken and not doubtful:
        return Outcome(status="pass", observed=_summary(len(folders), compiler=compiler))
    first = next(one for one in folders if (broken or doubtful)[0].startswith(_said(one)))
    return Outcome(
        status="fail" if broken else "warn",
        observed="; ".join(broken or doubtful),
        expected="writable by this uid; executable and local where code is built",
        remedy=MOUNT.format(folder=first["folder"]) + f"; or -e {first.get('name')}=/a/local/folder",
    )


def _summary(count: int, *, compiler: bool) -> str:
    return f"{count} caches as they should be" + ("" if compiler else "; no compiler, so nothing is built here")


def _said(one: Mapping[str, Any]) -> str:
    return f"{one.get('name')} {one['folder']}"


def _fault(one: Mapping[str, Any]) -> str:
    if one.get("error"):
        return f"is not writable ({one['error']}), so nothing can be built there"
    return "" if one.get("executable") else "is mounted noexec: what is built there cannot be loaded"


def _needed(one: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    """Models that are there, or a machine told to stay offline, need no writable cache; a home is always written to."""
    return one.get("name") == "HOME" or (bool(one.get("empty")) and not value.get("offline"))


def _folders(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home, words = environment.get("HOME") or os.path.expanduser("~"), _words(environment)
    for name, default in {**KEPT, **BUILDS}.items():
        text = environment.get(name) or default.format(**words)
        folder = Path(home + text[1:] if text.startswith("~") else text).absolute()
        # The image's home is the temporary folder, which has a check of its own.
        if folder != Path(words["tmp"]):
            yield name, folder


def _words(environment: Mapping[str, str]) -> dict[str, str]:
    return {"tmp": environment.get("TMPDIR") or "/tmp", "user": environment.get("USER") or str(os.getuid())}


def _named(name: str, environment: Mapping[str, str]) -> bool:
    """Whether somebody chose the folder: torch, once imported, sets its own variable to its own default."""
    said = environment.get(name, "")
    return bool(said) and said != BUILDS.get(name, "").format(**_words(environment))


def _probe(name: str, folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    try:
        where = existing(folder)
        error, executable = _use(where)
    except Unreachable as hangs:
        if hangs.check != "storage.commit":
            raise
        # Nobody else speaks for it: it is not where runs are written.
        where, error, executable = folder, "ETIMEDOUT", False
    mount = mount_of(where)
    return {
        "name": name,
        "folder": str(folder),
        "builds": name in BUILDS,
        "named": _named(name, environment),
        "error": error,
        "executable": executable,
        "kind": mount.kind if mount else "",
        "empty": where != folder or error == "ETIMEDOUT" or not _has_entries(folder),
    }


def _use(folder: Path) -> tuple[str, bool]:
    """The errno's name of making a file, and whether it may be mapped as code, as the loader does."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(mmap.PAGESIZE)
            try:
                mmap.mmap(file.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()
            except PermissionError:
                return "", False
    except OSError as failed:
        # A full folder is what container.temporary-folder and storage.space speak of.
        full = failed.errno in (errno.ENOSPC, errno.EDQUOT)
        return ("", True) if full else (_name(failed), False)
    return "", True


def _has_entries(folder: Path) -> bool:
    try:
        return next(folder.iterdir(), None) is not None
    except OSError:
        return False


def measure_file_times(context: Context) -> dict[str, Any]:
    """Seconds by which a new file where runs are written is ahead of this machine's clock."""
    folder = existing(context.output)
    try:
        before = time.time()
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".trackbed-") as file:
            file.write(b"x")
            file.flush()
            stamp, after = os.stat(file.name).st_mtime, time.time()
    except OSError as failed:
        return {"folder": str(folder), "error": _name(failed), "skew": 0.0}
    # A stamp between both is none; before them the server is behind, after them ahead.
    skew = min(stamp - before, 0.0) + max(stamp - after, 0.0)
    return {"folder": str(folder), "error": "", "skew": skew}


def judge_file_times(found: object) -> Outcome:
    """A server with another clock makes what is new look old: ninja builds again and again, caches never expire."""
    value = found if isinstance(found, Mapping) else {}
    folder, error, skew = value.get("folder"), value.get("error"), value.get("skew")
    usable = isinstance(skew, float) and skew == skew
    if not isinstance(folder, str) or not isinstance(error, str) or not usable:
        return unreadable("the time of a new file", found)
    if error:
        return skip(f"no file can be made in {folder} ({error})", "storage.commit says how to mend that")
    assert isinstance(skew, float)
    off = abs(skew)
    expected = f"{SKEW_SECONDS:g} s or less"
    if off <= SKEW_SECONDS:
        return Outcome(status="pass", observed=f"new files are {off:.2g} s off", expected=expected)
    where = "ahead of" if skew > 0 else "behind"  # mutation: equivalent, because no skew near 0 comes here
    return Outcome(
        status="warn",
        observed=f"a new file in {folder} is {off:.3g} s {where} this machine's clock",
        expected=expected,
        remedy="synchronize the clocks of this machine and of the file server: chronyc makestep on both, or enable NTP",
    )


def _name(failed: OSError) -> str:
    return errno.errorcode.get(failed.errno or 0, str(failed))


CHECKS = (
    Check(
        id="container.temporary-folder",
        title="the temporary folder",
        measure=measure_temporary,
        judge=judge_temporary,
        deadline=10,
        child="host",
        why="`No space left on device` from mpirun, a compiler or a download, far from the folder that is full; with a "
        "read-only one Python says `No usable temporary directory found`.",
        rule="Fails when 1 MiB cannot be written or less than 64 MiB are free; warns below 256 MiB.",
    ),
    Check(
        id="container.caches",
        title="caches are writable, and executable where code is built",
        measure=measure_caches,
        judge=judge_caches,
        deadline=10,
        child="host",
        why="`failed to map segment from shared object` after minutes of compiling: Triton, torch.compile and "
        "DeepSpeed load what they build, and Docker mounts --tmpfs noexec unless told otherwise.",
        rule="Fails when a folder for built code is not writable or noexec, and there is a compiler or a variable that "
        "names the folder. Warns when one is on a network, and when a model cache or HOME is empty and not writable.",
    ),
    Check(
        id="container.file-times",
        title="files carry this machine's time",
        measure=measure_file_times,
        judge=judge_file_times,
        deadline=10,
        child="host",
        why="On a file server whose clock is off, ninja rebuilds what it has just built, and the newest file is not "
        "the one that was written last.",
        rule=f"Warns when a new file where runs are written is more than {SKEW_SECONDS:g} s off; skips when none can "
        "be made.",
    ),
)
