"""container.*: what this process runs in, and what that takes away from a job."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from trackbed.validate import Check, Context, Outcome, text_of, unreadable
from trackbed.validate.machine.mounts import LAYERS, mount_of, mounts

ROOT = Path("/")
MARKS = {
    "Docker": (".dockerenv",),
    "Podman": ("run/.containerenv",),
    "Apptainer": (".singularity.d", ".apptainer.d"),
}
# How a container's control group is called where nothing else gives it away.
GROUPS = ("docker", "kubepods", "containerd", "libpod", "lxc")
SIGTERM = 1 << 14  # bit of signal 15 in the masks of /proc/PID/status
# Programs made to be PID 1. They wait for signals instead of catching them, which the masks do not show.
INITS = frozenset(("tini", "docker-init", "dumb-init", "catatonit", "podman-init", "systemd", "init", "s6-svscan"))
# SYS_MODULE, SYS_RAWIO and SYS_ADMIN: all that only --privileged gives. An older engine does not know the newest ones.
PRIVILEGED = 1 << 16 | 1 << 17 | 1 << 21
LAUNCHERS = frozenset(("deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch"))


def engine(root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> str:
    """What kind of container this process is in; empty on a machine of its own."""
    mount = mount_of(ROOT, root)
    layered = mount is not None and mount.kind in LAYERS
    # A virtual machine made from an image has the image's marks, and a kernel of its own that shows its threads.
    if not layered and text_of(root / "proc/2/comm").strip() == "kthreadd":
        return ""
    for name, marks in MARKS.items():
        if any((root / mark).exists() for mark in marks):
            return name
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return "Kubernetes"
    in_group = any(name in text_of(root / "proc/1/cgroup") for name in GROUPS)
    return "a container" if in_group or layered else ""


def measure_runtime(context: Context, root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The engine, the orchestrator and the version of control groups; empty for what there is none of."""
    kinds = {mount.kind for mount in mounts(root)} & {"cgroup", "cgroup2"}
    versions = {"cgroup": "1", "cgroup2": "2"}
    jobs = {"Kubernetes": "KUBERNETES_SERVICE_HOST", "Slurm": "SLURM_JOB_ID"}
    return {
        "engine": engine(root, environment),
        "orchestrator": " and ".join(name for name, variable in jobs.items() if environment.get(variable)),
        # Both are mounted in the mixed layout, and then it is version 1 that has the limits.
        "cgroup": min((versions[kind] for kind in kinds), default=""),
    }


def judge_runtime(runtime: object) -> Outcome:
    """Says what later limits depend on; a warning only where limits cannot be seen at all."""
    found = runtime if isinstance(runtime, Mapping) else {}
    names = [found.get(name) for name in ("engine", "orchestrator", "cgroup")]
    if not all(isinstance(name, str) for name in names) or names[2] not in ("", "1", "2"):
        return unreadable("what this process runs in", runtime)
    where, orchestrator, version = map(str, names)
    observed = f"{where or 'no container'}, {orchestrator or 'no orchestrator'}, "
    if version:
        return Outcome(status="pass", observed=f"{observed}control groups version {version}")
    return Outcome(
        status="warn",
        observed=f"{observed}no control groups: limits of CPU and memory cannot be seen, only hit",
        expected="control groups mounted at /sys/fs/cgroup",
        remedy="mount them (docker run does; for another engine -v /sys/fs/cgroup:/sys/fs/cgroup:ro)",
    )


def measure_stop_signal(context: Context, root: Path = ROOT, pid: int | None = None) -> dict[str, Any]:
    """PID 1, its children and the processes above this one, and whether each does something at SIGTERM."""
    chain = [1, *_above(root, os.getpid() if pid is None else pid)]
    # A child of PID 1 beside us is no link between the stop signal and a job that we would start.
    beside = [child for child in _children(root) if child not in chain]
    seen = [_process(root, number) | {"chained": number in chain} for number in (*chain, *beside)]
    return {"container": bool(engine(root)), "processes": [one for one in seen if one["command"]]}


def judge_stop_signal(found: object) -> Outcome:
    """The kernel drops SIGTERM for a PID 1 that does not handle it, and a shell does not pass it on."""
    value = found if isinstance(found, Mapping) else {}
    processes = value.get("processes")
    if not isinstance(value.get("container"), bool) or not isinstance(processes, Sequence) or not processes:
        return unreadable("what PID 1 is", found)
    if any(not isinstance(one, Mapping) or not str(one.get("command") or "").strip() for one in processes):
        return unreadable("what PID 1 is", processes)
    if not value["container"]:
        return Outcome(status="pass", observed="no container, so no PID 1 stands between SIGTERM and a job")
    expected = "SIGTERM reaches the ranks, so that they commit a checkpoint before `docker stop` kills them"
    launchers = [one["command"] for one in processes if _is_launcher(one["command"])]
    if launchers:
        remedy = "start ranks with torchrun --shutdown-timeout 300 (trackbed submit does), as the container's command"
        observed = f"`{launchers[0][:80]}` passes no SIGTERM to its ranks, and ends with 0 when it is killed"
        return Outcome(status="fail", observed=observed, expected=expected, remedy=remedy)
    deaf = [one for one in processes if one.get("chained") and not _hears(one)]
    if not deaf:
        return Outcome(status="pass", observed=f"`{processes[0]['command'][:60]}` is PID 1", expected=expected)
    return Outcome(
        status="warn",
        observed=f"`{deaf[0]['command'][:80]}` (PID {deaf[0].get('pid')}) does not pass SIGTERM on",
        expected=expected,
        remedy="make the job the container's command, or put `exec` before it in its shell: docker run IMAGE "
        "trackbed submit ..., or sh -c '...; exec trackbed submit ...'; and --stop-timeout 320 "
        "(compose stop_grace_period, Kubernetes terminationGracePeriodSeconds)",
    )


def _hears(one: Mapping[str, Any]) -> bool:
    """It handles SIGTERM, or a person sits at it, or it is this program, which handles it once ranks run."""
    words = [PurePath(word).name for word in str(one["command"]).split()]
    # Not any command with that word in it: a shell that starts us is no way through.
    runs = words[0].startswith(("python", "trackbed"))
    ours = runs and any(word == "trackbed" or word.startswith("trackbed.") for word in words)
    return bool(one.get("handles") or one.get("terminal") or ours)


def _is_launcher(command: str) -> bool:
    return any(PurePath(word).name in LAUNCHERS for word in command.split()[:4])


def _process(root: Path, pid: int) -> dict[str, Any]:
    folder = root / f"proc/{pid}"
    status = _status(root, pid)
    masks = (int(status.get(name, "0"), 16) for name in ("SigCgt", "SigBlk"))
    return {
        "pid": pid,
        "command": text_of(folder / "cmdline").replace("\0", " ").strip() or status.get("Name", ""),
        "handles": any(mask & SIGTERM for mask in masks) or status.get("Name") in INITS,
        "terminal": _link(folder / "fd/0").startswith(("/dev/pts/", "/dev/tty", "/dev/console")),
    }


def _above(root: Path, pid: int) -> list[int]:
    """The processes above this one, without PID 1; the nearest first."""
    found: list[int] = []
    while (pid := int(_status(root, pid).get("PPid", "0"))) > 1 and pid not in found:
        found.append(pid)
    return found


def _children(root: Path) -> Iterator[int]:
    for folder in (root / "proc").glob("[0-9]*"):
        if _status(root, int(folder.name)).get("PPid") == "1":
            yield int(folder.name)


def _status(root: Path, pid: int) -> dict[str, str]:
    pairs = (line.partition(":") for line in text_of(root / f"proc/{pid}/status").splitlines())
    return {name: value.strip() for name, _, value in pairs}


def measure_privileges(context: Context, root: Path = ROOT) -> dict[str, Any]:
    """Whether this container may do what its host may."""
    bounding = int(_status(root, 1).get("CapBnd", "0"), 16)
    sockets = [root / "var/run/docker.sock", root / "run/docker.sock"]
    return {
        "container": bool(engine(root)),
        "privileged": bounding & PRIVILEGED == PRIVILEGED,
        "socket": next((str(path) for path in sockets if path.exists() and os.access(path, os.W_OK)), ""),
        # The kernel's own thread is seen only where all of the host's processes are.
        "host_processes": text_of(root / "proc/2/comm").strip() == "kthreadd",
    }


def judge_privileges(found: object) -> Outcome:
    """A training job needs none of them; each hands the host to whatever a dependency brings along."""
    value = found if isinstance(found, Mapping) else {}
    flags = [value.get(name) for name in ("container", "privileged", "host_processes")]
    if not all(isinstance(flag, bool) for flag in flags) or not isinstance(value.get("socket"), str):
        return unreadable("what this container may do", found)
    expected = "a container that cannot reach beyond itself"
    if not value["container"]:
        return Outcome(status="pass", observed="no container", expected=expected)
    if value["socket"]:
        observed = f"{value['socket']} is mounted: whoever may write to it is root on the host"
        remedy = "leave out -v /var/run/docker.sock:/var/run/docker.sock"
        return Outcome(status="fail", observed=observed, expected=expected, remedy=remedy)
    risks = {"--privileged": value["privileged"], "--pid=host": value["host_processes"]}
    given = [flag for flag, on in risks.items() if on]
    if not given:
        return Outcome(status="pass", observed="confined: no engine's socket, not privileged, its own processes")
    remedy = f"leave out {' and '.join(given)}; GPUs need --gpus all, RDMA --device=/dev/infiniband, MPI none of them"
    return Outcome(status="warn", observed=f"started with {', '.join(given)}", expected=expected, remedy=remedy)


def measure_output_volume(context: Context, root: Path = ROOT) -> dict[str, Any]:
    """What kind of file system runs are written to, and whether it is the container's own."""
    mount = mount_of(context.output, root)
    return {
        "container": bool(engine(root)),
        "folder": str(context.output),
        "kind": mount.kind if mount else None,
        "own": mount is not None and str(mount.point) == "/",
    }


def judge_output_volume(found: object) -> Outcome:
    """`docker run --rm` deletes the container's own layer, and every checkpoint in it."""
    value = found if isinstance(found, Mapping) else {}
    kind, folder = value.get("kind"), value.get("folder")
    if not isinstance(kind, str) or not isinstance(folder, str) or not isinstance(value.get("container"), bool):
        return unreadable("the file system of the folder for runs", found)
    lost = "the container's own layer" if value.get("own") else ""
    lost = "memory" if kind in ("tmpfs", "ramfs") else lost
    expected = "a file system that outlives the container"
    if not value["container"] or not lost:
        return Outcome(status="pass", observed=f"{folder} is on {kind}", expected=expected)
    return Outcome(
        status="warn",
        observed=f"{folder} is in {lost}: runs and checkpoints are lost with the container",
        expected=expected,
        remedy=f"docker run -v runs:{folder}; compose `volumes: [runs:{folder}]`; Kubernetes: a persistentVolumeClaim",
    )


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


CHECKS = (
    Check(
        id="container.runtime",
        title="what this process runs in",
        measure=measure_runtime,
        judge=judge_runtime,
        deadline=10,
        child="host",
        levels=("image", "node", "job", "deep"),
        why="Every limit is read through the control groups. Where none are mounted, a quota or a memory limit shows "
        "only by its effect: slow steps, or exit code 137 without a message.",
        rule="Warns when no control groups are mounted; otherwise it only says what the engine, the orchestrator and "
        "the version of control groups are.",
    ),
    Check(
        id="container.stop-signal",
        title="SIGTERM reaches the ranks",
        measure=measure_stop_signal,
        judge=judge_stop_signal,
        deadline=10,
        child="host",
        why="`docker stop`, a preemption and a Slurm time limit send SIGTERM to PID 1. The kernel drops it when PID 1 "
        "has no handler, and after the grace period everything is killed (exit code 137) without a checkpoint.",
        rule="Fails when PID 1 or its child is the `deepspeed` launcher; warns when PID 1 or a process between it and "
        "this one (a shell) neither handles SIGTERM nor has a terminal. Outside a container it passes.",
    ),
    Check(
        id="container.privileges",
        title="the container cannot reach beyond itself",
        measure=measure_privileges,
        judge=judge_privileges,
        deadline=10,
        child="host",
        why="A job runs the code of hundreds of packages. In a privileged container, or with the engine's socket, any "
        "of them is root on the host.",
        rule="Fails when the engine's socket is there and writable; warns for --privileged and --pid=host.",
    ),
    Check(
        id="container.output-volume",
        title="runs outlive the container",
        measure=measure_output_volume,
        judge=judge_output_volume,
        deadline=10,
        child="host",
        levels=("job", "deep"),
        why="A run folder on the container's own layer is gone with `docker run --rm`, `docker compose down` or the "
        "end of a pod, with every checkpoint in it and without any message.",
        rule="Warns when the folder for runs is on the container's own layer or in memory.",
    ),
)
