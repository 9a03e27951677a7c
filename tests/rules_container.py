"""The rules of container.*, limits.*, network.* and mpi.*: check, what was measured, its status, what it must say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trackbed.validate import GIB, MIB

NAN, INF = math.nan, math.inf


def runtime(**changes: Any) -> dict[str, Any]:
    return {"engine": "Docker", "orchestrator": "", "cgroup": "2", **changes}


def process(command: str, **changes: Any) -> dict[str, Any]:
    return {"pid": 1, "command": command, "handles": False, "terminal": False, "chained": True, **changes}


def signal(*processes: Any, container: Any = True) -> dict[str, Any]:
    return {"container": container, "processes": list(processes)}


def privileges(**changes: Any) -> dict[str, Any]:
    return {"container": True, "privileged": False, "host_processes": False, "socket": "", **changes}


def volume(**changes: Any) -> dict[str, Any]:
    return {"container": True, "folder": "/runs", "kind": "ext4", "own": False, **changes}


def binding(error: Any, nodes: Any = 2, machine: Any = "x86_64") -> dict[str, Any]:
    return {"error": error, "nodes": nodes, "machine": machine}


def copy(error: Any, mpirun: Any = "5.0.11", asked: Any = "") -> dict[str, Any]:
    return {"error": error, "mpirun": mpirun, "asked": asked}


def temporary(free: Any, error: Any = "", folder: Any = "/tmp") -> dict[str, Any]:
    return {"free": free, "error": error, "folder": folder}


def cache(name: str, **changes: Any) -> dict[str, Any]:
    one = {"name": name, "folder": "/c", "builds": False, "named": False, "error": "", "executable": True}
    return {**one, "kind": "ext4", "empty": True, **changes}


def built(**changes: Any) -> dict[str, Any]:
    return cache("TORCH_EXTENSIONS_DIR", **{"builds": True, **changes})


def caches(*folders: Any, compiler: Any = True, offline: Any = False) -> dict[str, Any]:
    return {"folders": list(folders), "compiler": compiler, "offline": offline}


def times(skew: Any, error: Any = "", folder: Any = "/runs") -> dict[str, Any]:
    return {"skew": skew, "error": error, "folder": folder}


def packages(*broken: str, torch: str = "", moved: Sequence[str] = (), **cuda: list[str]) -> dict[str, Any]:
    return {
        "count": 9,
        "torch": torch,
        "broken": list(broken),
        "moved": list(moved),
        "cuda": {name[2:]: found for name, found in cuda.items()},
    }


def processes(**changes: Any) -> dict[str, Any]:
    return {"allowed": INF, "running": 10, "user_allowed": INF, "user_running": 20, "ranks": 2, **changes}


def threads(count: Any, cpus: Any = 4.0, ranks: Any = 2) -> dict[str, Any]:
    return {"variable": "OMP_NUM_THREADS" if count else "", "threads": count, "cpus": cpus, "ranks": ranks}


def swap(used: Any, memory: Any = 100 * GIB) -> dict[str, Any]:
    return {"used": used, "memory": memory, "swappiness": "60"}


def cores(limit: Any, **changes: Any) -> dict[str, Any]:
    return {"limit": limit, "pattern": "core", "folder": "/runs", "beside_runs": True, **changes}


def source(name: Any, **changes: Any) -> dict[str, Any]:
    return {"name": name, "available": ["tsc", "hpet"], "virtual": False, **changes}


def clock(synchronized: Any, nodes: Any = 2, **changes: Any) -> dict[str, Any]:
    return {"error": "", "synchronized": synchronized, "largest_error": 0.01, "nodes": nodes, **changes}


def interface(name: str, *addresses: str, up: bool = True) -> dict[str, Any]:
    return {"name": name, "addresses": list(addresses), "up": up}


LO, ETH = interface("lo", "127.0.0.1"), interface("eth0", "10.0.0.2")
DOCKER, IB = interface("docker0", "172.17.0.1"), interface("ib0", "10.1.0.2")


def nccl(wanted: Any, *found: Any, nodes: Any = 2) -> dict[str, Any]:
    return {"wanted": wanted, "origin": "the environment" if wanted else "", "interfaces": list(found), "nodes": nodes}


def name(*addresses: str, **changes: Any) -> dict[str, Any]:
    fields = {"name": "n1", "addresses": list(addresses), "interfaces": [LO, ETH, DOCKER], "wanted": "", "nodes": 2}
    return {**fields, **changes}


def variables(**values: str) -> dict[str, Any]:
    return {"settings": {f"NCCL_{name}": (value, "the environment") for name, value in values.items()}}


def port(name: str, text: Any, *, used: bool = False, by: str = "") -> dict[str, Any]:
    return {"ports": [{"name": name, "port": text, "used": used, "by": by}]}


def library(mpirun: Any, info: Any, loaded: Any) -> dict[str, Any]:
    return {"mpirun": mpirun, "ompi_info": info, "library": loaded}


def slots(code: Any, started: Any = 0, stderr: Any = "There are not enough slots available") -> dict[str, Any]:
    return {"ranks": 2, "code": code, "started": started, "stderr": stderr}


def root(uid: Any, *given: str, mpirun: Any = "/bin/mpirun") -> dict[str, Any]:
    return {"uid": uid, "set": list(given), "mpirun": mpirun}


def locked(here: Any, *ranks: Any) -> dict[str, Any]:
    return {"here": here, "ranks": list(ranks)}


def launcher(*found: str, hostfile: Any = "") -> dict[str, Any]:
    return {"interfaces": list(found), "hostfile": hostfile}


ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
SHELL = "sh -c trackbed validate; true"
RULES: list[tuple[str, Any, str, str]] = [
    ("container.runtime", runtime(), "pass", "Docker, no orchestrator, control groups version 2"),
    ("container.runtime", runtime(engine="", orchestrator="Slurm", cgroup="1"), "pass", "no container, Slurm"),
    ("container.runtime", runtime(cgroup=""), "warn", "no control groups"),
    ("container.runtime", runtime(cgroup="3"), "error", "makes no sense"),
    ("container.runtime", runtime(engine=None), "error", "makes no sense"),
    ("container.runtime", None, "error", "could not be read"),
    ("container.stop-signal", signal(process("tini -- x", handles=True)), "pass", "`tini -- x` is PID 1"),
    ("container.stop-signal", signal(process("python /opt/bin/trackbed validate")), "pass", "is PID 1"),
    ("container.stop-signal", signal(process("python -m trackbed.cli validate")), "pass", "is PID 1"),
    ("container.stop-signal", signal(process("bash", terminal=True)), "pass", "is PID 1"),
    ("container.stop-signal", signal(process("python3 train.py")), "warn", "`python3 train.py`"),
    ("container.stop-signal", signal(process(SHELL)), "warn", "(PID 1) does not pass SIGTERM on"),
    (
        "container.stop-signal",
        signal(process("tini -- x", handles=True), process("bash run.sh", pid=7)),
        "warn",
        "`bash run.sh` (PID 7)",
    ),
    (
        "container.stop-signal",
        signal(process("tini -- x", handles=True), process("sleep 9", pid=7, chained=False)),
        "pass",
        "tini",
    ),
    ("container.stop-signal", signal(process("python /opt/venv/bin/deepspeed train.py")), "fail", "its ranks"),
    (
        "container.stop-signal",
        signal(process("tini", handles=True), process("python -m deepspeed.launcher.launch x", chained=False)),
        "fail",
        "deepspeed.launcher.launch",
    ),
    ("container.stop-signal", signal(process(SHELL), container=False), "pass", "no container"),
    ("container.stop-signal", signal(process(SHELL), container="yes"), "error", "makes no sense"),
    ("container.stop-signal", signal(), "error", "makes no sense"),
    ("container.stop-signal", signal("sh"), "error", "makes no sense"),
    ("container.stop-signal", signal(process("")), "error", "makes no sense"),
    ("container.stop-signal", None, "error", "could not be read"),
    ("container.privileges", privileges(), "pass", "confined"),
    ("container.privileges", privileges(privileged=True), "warn", "--privileged"),
    ("container.privileges", privileges(host_processes=True), "warn", "--pid=host"),
    ("container.privileges", privileges(socket="/run/docker.sock", privileged=True), "fail", "root on the host"),
    ("container.privileges", privileges(container=False, socket="/run/docker.sock"), "pass", "no container"),
    ("container.privileges", privileges(privileged="no"), "error", "makes no sense"),
    ("container.privileges", privileges(socket=None), "error", "makes no sense"),
    ("container.privileges", None, "error", "could not be read"),
    ("container.output-volume", volume(), "pass", "/runs is on ext4"),
    ("container.output-volume", volume(kind="overlay", own=True), "warn", "the container's own layer"),
    ("container.output-volume", volume(kind="tmpfs"), "warn", "in memory"),
    ("container.output-volume", volume(kind="overlay", own=True, container=False), "pass", "overlay"),
    ("container.output-volume", volume(kind=None), "error", "makes no sense"),
    ("container.output-volume", None, "error", "could not be read"),
    ("container.memory-binding", binding(""), "pass", "memory can be bound"),
    ("container.memory-binding", binding("EPERM", 1), "pass", "refused (EPERM)"),
    ("container.memory-binding", binding("EPERM", 2), "warn", "with 2 NUMA nodes"),
    ("container.memory-binding", binding(None, machine="riscv64"), "skip", "riscv64"),
    ("container.memory-binding", binding(3), "error", "makes no sense"),
    ("container.memory-binding", binding("", True), "error", "makes no sense"),
    ("container.memory-binding", None, "error", "could not be read"),
    ("container.process-copy", copy(""), "pass", "may copy"),
    ("container.process-copy", copy("EPERM"), "pass", "nothing asks for it"),
    ("container.process-copy", copy("EPERM", "4.1.4"), "pass", "comm.mpi-all-reduce says"),
    ("container.process-copy", copy("EPERM", asked="OMPI_MCA_smsc"), "warn", "OMPI_MCA_smsc asks"),
    ("container.process-copy", copy("", asked="OMPI_MCA_smsc"), "pass", "may copy"),
    ("container.process-copy", copy(None), "error", "makes no sense"),
    ("container.process-copy", None, "error", "could not be read"),
    ("container.temporary-folder", temporary(256 * MIB), "pass", "256 MiB free in /tmp"),
    ("container.temporary-folder", temporary(256 * MIB - 1), "warn", "free in /tmp"),
    ("container.temporary-folder", temporary(64 * MIB), "warn", "64 MiB"),
    ("container.temporary-folder", temporary(64 * MIB - 1), "fail", "free in /tmp"),
    ("container.temporary-folder", temporary(GIB, "EROFS"), "fail", "EROFS"),
    ("container.temporary-folder", temporary(0, "ENOSPC"), "fail", "0 MiB free in /tmp: ENOSPC"),
    ("container.temporary-folder", temporary(-1), "error", "makes no sense"),
    ("container.temporary-folder", temporary(GIB, None), "error", "makes no sense"),
    ("container.temporary-folder", None, "error", "could not be read"),
    ("container.caches", caches(cache("HOME"), built()), "pass", "2 caches"),
    ("container.caches", caches(built(executable=False)), "fail", "noexec"),
    ("container.caches", caches(built(executable=False), compiler=False), "pass", "no compiler"),
    ("container.caches", caches(built(executable=False, named=True), compiler=False), "fail", "noexec"),
    ("container.caches", caches(built(error="EROFS", executable=False)), "fail", "not writable (EROFS)"),
    ("container.caches", caches(built(kind="nfs4")), "warn", "on nfs4"),
    ("container.caches", caches(built(kind="nfs4"), compiler=False), "pass", "1 caches"),
    (
        "container.caches",
        caches(cache("HOME", error="EACCES", empty=False)),
        "warn",
        "HOME /c is not writable (EACCES)",
    ),
    ("container.caches", caches(cache("HF_HOME", error="EACCES")), "warn", "HF_HOME /c is not writable"),
    ("container.caches", caches(cache("HF_HOME", error="EROFS", empty=False)), "pass", "1 caches"),
    ("container.caches", caches(cache("HF_HOME", error="EROFS"), offline=True), "pass", "1 caches"),
    ("container.caches", caches(), "error", "makes no sense"),
    ("container.caches", caches("folder"), "error", "makes no sense"),
    ("container.caches", caches(built(), compiler="cc"), "error", "makes no sense"),
    ("container.caches", None, "error", "could not be read"),
    ("container.file-times", times(0.0), "pass", "0 s off"),
    ("container.file-times", times(2.0), "pass", "2 s off"),
    ("container.file-times", times(-2.0), "pass", "2 s off"),
    ("container.file-times", times(2.001), "warn", "2 s ahead of"),
    ("container.file-times", times(-3600.0), "warn", "behind"),
    ("container.file-times", times(0.0, "EROFS"), "skip", "no file can be made"),
    ("container.file-times", times(NAN), "error", "makes no sense"),
    ("container.file-times", times("0"), "error", "makes no sense"),
    ("container.file-times", None, "error", "could not be read"),
    ("container.packages", packages(cu13=["nvidia-nccl-cu13"]), "pass", "those of NVIDIA for CUDA 13"),
    ("container.packages", packages(), "pass", "9 packages fit together"),
    (
        "container.packages",
        packages(cu12=["nvidia-cudnn-cu12"], cu13=["nvidia-cudnn-cu13", "nvidia-nccl-cu13"]),
        "fail",
        "nvidia-cudnn-cu12 beside those for 13",
    ),
    (
        "container.packages",
        packages(cu12=["a"], cu13=["b", "c"], torch="12"),
        "fail",
        "b, c beside those for 12",
    ),
    ("container.packages", packages("a 1 needs b<2, but 3 is installed"), "warn", "a 1 needs b<2"),
    ("container.packages", packages(*"1234567"), "warn", "and 2 more"),
    ("container.packages", packages(*"123456"), "warn", "and 1 more"),
    ("container.packages", packages(moved=["protobuf"]), "skip", "need another protobuf, as the release does"),
    ("container.packages", packages("a 1 needs b<2, but 3 is installed", moved=["c"]), "warn", "a 1 needs b<2"),
    ("container.packages", packages() | {"count": 1}, "pass", "1 packages"),
    ("container.packages", packages() | {"count": 0}, "error", "makes no sense"),
    ("container.packages", packages() | {"cuda": "12"}, "error", "makes no sense"),
    ("container.packages", packages() | {"broken": "all"}, "error", "makes no sense"),
    ("container.packages", packages() | {"moved": "all"}, "error", "makes no sense"),
    ("container.packages", packages() | {"moved": None}, "error", "makes no sense"),
    ("container.packages", None, "error", "could not be read"),
    ("limits.processes", processes(), "pass", "no limit"),
    ("limits.processes", processes(allowed=266), "pass", "256 more may start (266 allowed)"),
    ("limits.processes", processes(allowed=265), "warn", "255 more"),
    ("limits.processes", processes(allowed=138), "warn", "128 more"),
    ("limits.processes", processes(allowed=137), "fail", "127 more"),
    ("limits.processes", processes(user_allowed=147), "fail", "127 more may start (147 allowed)"),
    ("limits.processes", processes(allowed=5), "fail", "0 more"),
    (
        "limits.processes",
        processes(allowed=100, running=0, user_allowed=120, user_running=20),
        "fail",
        "100 more may start (100 allowed)",
    ),
    ("limits.processes", processes(ranks=0), "error", "makes no sense"),
    ("limits.processes", processes(allowed="max"), "error", "makes no sense"),
    ("limits.processes", None, "error", "could not be read"),
    ("limits.throttling", {"periods": 99, "throttled": 99}, "pass", "99 periods"),
    ("limits.throttling", {"periods": 100, "throttled": 5}, "pass", "5% of 100"),
    ("limits.throttling", {"periods": 100, "throttled": 6}, "warn", "6% of 100"),
    ("limits.throttling", {"periods": 10000, "throttled": 501}, "warn", "5% of 10000"),
    ("limits.throttling", {"periods": 5, "throttled": 6}, "error", "makes no sense"),
    ("limits.throttling", {"periods": 5}, "error", "makes no sense"),
    ("limits.throttling", None, "error", "could not be read"),
    ("limits.swap", swap(0), "pass", "0 MiB of swap"),
    ("limits.swap", swap(10 * GIB), "pass", "10 GiB of swap"),
    ("limits.swap", swap(10 * GIB + 1), "warn", "of swap in use"),
    ("limits.swap", swap(None), "error", "makes no sense"),
    ("limits.swap", swap(0, 0), "error", "makes no sense"),
    ("limits.swap", None, "error", "could not be read"),
    ("limits.threads", threads(0), "pass", "no variable"),
    ("limits.threads", threads(1, cpus=0.5), "pass", "OMP_NUM_THREADS=1"),
    ("limits.threads", threads(2), "pass", "2 x 2 ranks on 4 CPUs"),
    ("limits.threads", threads(3), "warn", "3 x 2 ranks"),
    ("limits.threads", threads(8), "warn", "8 x 2 ranks"),
    ("limits.threads", threads(9), "fail", "9 x 2 ranks"),
    ("limits.threads", threads(4, cpus=0.5), "warn", "4 x 2 ranks on 0.5 CPUs"),
    ("limits.threads", threads(201, cpus=400), "warn", "201 x 2 ranks on 400 CPUs"),
    ("limits.threads", threads(801, cpus=400), "fail", "801 x 2 ranks on 400 CPUs"),
    ("limits.threads", threads("all"), "error", "makes no sense"),
    ("limits.threads", threads(2, cpus=0), "error", "makes no sense"),
    ("limits.threads", threads(2, ranks=0), "error", "makes no sense"),
    ("limits.threads", None, "error", "could not be read"),
    ("limits.stuck-processes", {"stuck": [], "zombies": 50}, "pass", "no process is stuck"),
    ("limits.stuck-processes", {"stuck": [], "zombies": 51}, "warn", "51 processes ended"),
    ("limits.stuck-processes", {"stuck": ["cp (PID 7, nfs)"], "zombies": 0}, "warn", "1 stuck"),
    ("limits.stuck-processes", {"stuck": ["a"] * 5, "zombies": 0}, "warn", "5 stuck"),
    ("limits.stuck-processes", {"stuck": ["a"] * 6, "zombies": 0}, "fail", "6 stuck"),
    ("limits.stuck-processes", {"stuck": "none", "zombies": 0}, "error", "makes no sense"),
    ("limits.stuck-processes", {"stuck": [], "zombies": None}, "error", "makes no sense"),
    ("limits.stuck-processes", None, "error", "could not be read"),
    ("limits.core-dumps", cores(0), "pass", "0 MiB at most"),
    ("limits.core-dumps", cores(GIB - 1), "pass", "at most"),
    ("limits.core-dumps", cores(GIB), "warn", "go to /runs"),
    ("limits.core-dumps", cores(INF), "warn", "of any size"),
    ("limits.core-dumps", cores(INF, beside_runs=False), "pass", "unlimited at most"),
    ("limits.core-dumps", cores(0, pattern=""), "pass", "pattern unknown"),
    ("limits.core-dumps", cores("all"), "error", "makes no sense"),
    ("limits.core-dumps", cores(0, beside_runs=None), "error", "makes no sense"),
    ("limits.core-dumps", None, "error", "could not be read"),
    ("limits.clock-source", source("tsc"), "pass", "tsc"),
    ("limits.clock-source", source("kvm-clock", virtual=True), "pass", "kvm-clock"),
    ("limits.clock-source", source("hpet"), "warn", "hpet"),
    ("limits.clock-source", source("hpet", virtual=True), "pass", "virtual machine's host"),
    ("limits.clock-source", source(""), "skip", "does not show"),
    ("limits.clock-source", source(None), "error", "makes no sense"),
    ("limits.clock-source", source("tsc", virtual="no"), "error", "makes no sense"),
    ("limits.clock-source", None, "error", "could not be read"),
    ("limits.clock-sync", clock(True), "pass", "synchronized, 0.01 s off"),
    ("limits.clock-sync", clock(False, 1), "pass", "one node"),
    ("limits.clock-sync", clock(False, 2), "warn", "2 nodes"),
    ("limits.clock-sync", clock(False, error="EPERM"), "skip", "EPERM"),
    ("limits.clock-sync", clock("yes"), "error", "makes no sense"),
    ("limits.clock-sync", clock(True, 0), "error", "makes no sense"),
    ("limits.clock-sync", None, "error", "could not be read"),
    ("network.nccl-interface", nccl("", LO, ETH, DOCKER), "pass", "without NCCL_SOCKET_IFNAME: eth0 of lo, eth0"),
    ("network.nccl-interface", nccl("", LO, ETH, IB), "pass", "ib0 of"),
    ("network.nccl-interface", nccl("", LO, DOCKER), "fail", "docker0 of"),
    ("network.nccl-interface", nccl("", LO), "fail", "lo of lo; 2 nodes"),
    ("network.nccl-interface", nccl("", LO, nodes=1), "pass", "lo of lo; 1 node"),
    ("network.nccl-interface", nccl("^docker0", LO, ETH), "fail", "^docker0: lo of"),
    ("network.nccl-interface", nccl("^docker0", LO, ETH, nodes=1), "warn", "^docker0: lo of"),
    ("network.nccl-interface", nccl("lo", LO, nodes=1), "pass", "lo of lo"),
    ("network.nccl-interface", nccl("^lo,docker", LO, DOCKER, ETH), "pass", "eth0 of"),
    ("network.nccl-interface", nccl("=eth", LO, ETH), "fail", "no interface here fits"),
    ("network.nccl-interface", nccl("=eth0", LO, ETH), "pass", "eth0 of"),
    ("network.nccl-interface", nccl("ens", LO, ETH, nodes=1), "fail", "there are: lo, eth0"),
    ("network.nccl-interface", nccl("eth", LO, interface("eth0", "10.0.0.2", up=False)), "fail", "there are: lo"),
    ("network.nccl-interface", nccl("x", LO, ETH), "pass", "NCCL_SOCKET_IFNAME=x: eth0"),
    ("network.nccl-interface", nccl("lo", LO, ETH, nodes=1), "warn", "lo of lo, eth0"),
    ("network.nccl-interface", nccl("", nodes=1), "pass", "no interface at all"),
    ("network.nccl-interface", nccl(None, LO), "error", "makes no sense"),
    ("network.nccl-interface", nccl("", "lo"), "error", "makes no sense"),
    ("network.nccl-interface", nccl("", LO, nodes=0), "error", "makes no sense"),
    ("network.nccl-interface", None, "error", "could not be read"),
    ("network.host-name", name("10.0.0.2"), "pass", "n1 is 10.0.0.2"),
    ("network.host-name", name("127.0.1.1"), "fail", "127.0.1.1, a loopback address, and the job has 2 nodes"),
    ("network.host-name", name("127.0.1.1", nodes=1), "pass", "one node needs no other"),
    ("network.host-name", name("::1"), "fail", "::1, a loopback"),
    ("network.host-name", name("10.9.9.9"), "fail", "not an address of this host"),
    ("network.host-name", name(), "fail", "resolves to nothing"),
    ("network.host-name", name(addresses=None), "fail", "not resolved within 5 s"),
    ("network.host-name", name("127.0.1.1", wanted="eth0"), "pass", "GLOO_SOCKET_IFNAME=eth0 is up"),
    ("network.host-name", name("10.0.0.2", wanted="eth9"), "fail", "eth9 is no interface that is up"),
    ("network.host-name", name("10.0.0.2", wanted="eth9", nodes=1), "fail", "eth9 is no interface that is up"),
    ("network.host-name", name("10.0.0.2", wanted="lo"), "fail", "not reached from other nodes"),
    ("network.host-name", name("10.0.0.2", wanted="lo", nodes=1), "pass", "lo is up"),
    ("network.host-name", name("10.0.0.2", addresses="10.0.0.2"), "error", "makes no sense"),
    ("network.host-name", name("10.0.0.2", interfaces=None), "error", "makes no sense"),
    ("network.host-name", name("10.0.0.2", name=None), "error", "makes no sense"),
    ("network.host-name", None, "error", "could not be read"),
    ("network.nccl-variables", variables(), "pass", "0 NCCL_ variables"),
    ("network.nccl-variables", variables(DEBUG="WARN", VERSION="2.29.7", FASTRAK_CTRL_DEV="eth0"), "pass", "3 NCCL_"),
    ("network.nccl-variables", variables(P2P_DISABLE="0"), "pass", "1 NCCL_"),
    ("network.nccl-variables", variables(P2P_DISABLE="1"), "warn", "NCCL_P2P_DISABLE=1"),
    ("network.nccl-variables", variables(DEBUG="trace"), "warn", "NCCL_DEBUG=trace"),
    ("network.nccl-variables", variables(SOCKET_IFNAM="eth0"), "warn", "it knows NCCL_SOCKET_IFNAME"),
    ("network.nccl-variables", {"settings": {"NCCL_DEBUG": "INFO"}}, "error", "makes no sense"),
    ("network.nccl-variables", {"settings": {"NCCL_DEBUG": "AB"}}, "error", "makes no sense"),
    ("network.nccl-variables", {"settings": []}, "error", "makes no sense"),
    ("network.nccl-variables", None, "error", "could not be read"),
    ("network.ports", {"ports": []}, "pass", "no port set"),
    ("network.ports", port("MASTER_PORT", "29500"), "pass", "MASTER_PORT 29500"),
    ("network.ports", port("MASTER_PORT", "29500", used=True, by="python"), "fail", "in use by python"),
    ("network.ports", port("MASTER_PORT", "65536"), "fail", "65536 is no port"),
    ("network.ports", port("MASTER_PORT", "65535"), "pass", "65535"),
    ("network.ports", port("MASTER_PORT", "0"), "pass", "MASTER_PORT 0"),
    ("network.ports", port("MASTER_PORT", "auto"), "fail", "auto is no port"),
    ("network.ports", port("TENSORBOARD_PORT", "6006", used=True), "warn", "6006 is in use"),
    ("network.ports", port("TENSORBOARD_PORT", "6006", used=True, by="python trackbed monitor"), "pass", "6006"),
    ("network.ports", {"ports": [6006]}, "error", "makes no sense"),
    ("network.ports", {"ports": "6006"}, "error", "makes no sense"),
    ("network.ports", port("MASTER_PORT", 29500), "error", "makes no sense"),
    ("network.ports", None, "error", "could not be read"),
    ("mpi.library", library("5.0.11", "5.0.11", "Open MPI v5.0.11, package"), "pass", "5.0.11 everywhere"),
    ("mpi.library", library("4.2.0", "", "MPICH Version: 4.2.0"), "pass", "4.2.0 everywhere"),
    ("mpi.library", library("5.0.11", "5.0.11", "Open MPI v4.1.4"), "fail", "mpi4py's library 4.1.4"),
    ("mpi.library", library("5.0.11", "4.1.4", "Open MPI v5.0.11"), "fail", "ompi_info 4.1.4"),
    ("mpi.library", library("5.0.11", "5.0.11", "an MPI"), "fail", "mpi4py's library an MPI"),
    ("mpi.library", library("", "", "Open MPI v5.0.11"), "skip", "no mpirun"),
    ("mpi.library", {**library("", "", ""), "error": "ImportError: libmpi.so.40"}, "skip", "libmpi.so.40"),
    ("mpi.library", library("5.0.11", "5.0.11", ""), "error", "makes no sense"),
    ("mpi.library", library(5, "", "x"), "error", "makes no sense"),
    ("mpi.library", None, "error", "could not be read"),
    ("mpi.accelerators", {"cuda": "false", "gpus": 0}, "skip", "no NVIDIA GPU"),
    ("mpi.accelerators", {"cuda": "true", "gpus": 1}, "pass", "built for CUDA"),
    ("mpi.accelerators", {"cuda": "false", "gpus": 8}, "warn", "8 GPUs"),
    ("mpi.accelerators", {"cuda": "", "gpus": 8}, "warn", "does not say"),
    ("mpi.accelerators", {"cuda": "maybe", "gpus": 8}, "error", "makes no sense"),
    ("mpi.accelerators", {"cuda": "true", "gpus": None}, "error", "makes no sense"),
    ("mpi.accelerators", None, "error", "could not be read"),
    ("mpi.interface", launcher("eth0", "lo"), "pass", "eth0"),
    ("mpi.interface", launcher("ens5", "lo"), "skip", "no eth0"),
    ("mpi.interface", launcher("ens5", "lo", hostfile="/job/hostfile"), "fail", "up: ens5, lo"),
    ("mpi.interface", launcher("ens5", hostfile=None), "error", "makes no sense"),
    ("mpi.interface", {"interfaces": "eth0", "hostfile": ""}, "error", "makes no sense"),
    ("mpi.interface", None, "error", "could not be read"),
    ("mpi.root", root(1000), "pass", "uid 1000"),
    ("mpi.root", root(0, *ROOT_VARIABLES), "pass", "root, and allowed"),
    ("mpi.root", root(0), "warn", "refuses root"),
    ("mpi.root", root(0, ROOT_VARIABLES[0]), "warn", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM not set"),
    ("mpi.root", root(0, mpirun=""), "skip", "no mpirun"),
    ("mpi.root", root(-1), "error", "makes no sense"),
    ("mpi.root", {"uid": 0, "set": "both", "mpirun": ""}, "error", "makes no sense"),
    ("mpi.root", None, "error", "could not be read"),
    ("mpi.slots", slots(0, 2, ""), "pass", "starts 2 ranks"),
    ("mpi.slots", slots(0, 1, ""), "skip", "another reason"),
    ("mpi.slots", slots(1), "warn", "not 2 slots"),
    ("mpi.slots", slots(1, stderr="boom"), "skip", "another reason"),
    ("mpi.slots", slots(None, stderr="there is no mpirun"), "skip", "another reason"),
    ("mpi.slots", slots("0"), "error", "makes no sense"),
    ("mpi.slots", slots(1, stderr=None), "error", "makes no sense"),
    ("mpi.slots", None, "error", "could not be read"),
    ("mpi.locked-memory", locked(8 * MIB, 8 * MIB, 8 * MIB), "pass", "8 MiB, as here"),
    ("mpi.locked-memory", locked(INF, 16 * GIB, INF), "pass", "16 GiB"),
    ("mpi.locked-memory", locked(INF, 16 * GIB - 1, INF), "warn", "this process unlimited"),
    ("mpi.locked-memory", locked(8 * MIB, 64 * 1024), "warn", "a rank may lock"),
    ("mpi.locked-memory", locked(8 * MIB), "skip", "no rank to ask"),
    ("mpi.locked-memory", locked(8 * MIB, "all"), "error", "makes no sense"),
    ("mpi.locked-memory", locked(None, 1), "error", "makes no sense"),
    ("mpi.locked-memory", None, "error", "could not be read"),
]

# What a rule says beside its status and what was seen: the check, what was measured, the field, a pattern in it.
TEXTS: list[tuple[str, Any, str, str]] = [
    ("container.packages", packages(*"12345"), "observed", "4; 5$"),
    ("container.temporary-folder", temporary(1), "remedy", "^free space .*--tmpfs /tmp:size=1g"),
    ("container.temporary-folder", temporary(0, "ENOSPC"), "remedy", "^free space"),
    ("container.temporary-folder", temporary(GIB, "EROFS"), "remedy", "^docker run --tmpfs /tmp .mode 1777."),
    ("container.caches", caches(built(executable=False)), "remedy", "--tmpfs /c:exec;.*-e TORCH_EXTENSIONS_DIR="),
    ("container.file-times", times(2.5), "observed", "ahead of"),
    ("container.file-times", times(-2.5), "observed", "behind"),
    ("limits.clock-source", source("hpet"), "evidence", "available: tsc hpet"),
    ("limits.processes", processes(allowed=100), "remedy", "--pids-limit 522 "),
    (
        "limits.processes",
        processes(allowed=100, running=0, user_allowed=120, user_running=20),
        "remedy",
        "--pids-limit 512 ",
    ),
    ("limits.processes", processes(user_allowed=100), "remedy", "--ulimit nproc=532;"),
    ("limits.swap", swap(0), "evidence", "vm.swappiness 60"),
    ("limits.threads", threads(1), "observed", "=1$"),
    ("limits.threads", threads(9, cpus=6), "remedy", "OMP_NUM_THREADS=3 "),
    ("mpi.interface", launcher("lo", "ens5", hostfile="/job/hostfile"), "remedy", "btl_tcp_if_include ens5'"),
    ("mpi.root", root(0, ROOT_VARIABLES[0]), "remedy", "; or -e OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "),
    ("network.nccl-interface", nccl("", LO, nodes=1), "observed", "1 node$"),
    ("network.nccl-interface", nccl("^docker0", LO, ETH), "remedy", "=.lo,docker or NCCL_SOCKET_IFNAME=eth0 "),
    ("network.host-name", name("127.0.1.1"), "remedy", "^export GLOO_SOCKET_IFNAME=eth0; or this host's own address"),
    ("network.host-name", name("10.0.0.2", wanted="eth9"), "remedy", "=eth0; or unset GLOO_SOCKET_IFNAME$"),
    ("network.host-name", name("10.0.0.2", wanted="eth9", interfaces=[LO]), "remedy", "=eth0; or unset"),
    ("network.host-name", name("10.0.0.2", wanted="eth9", interfaces=[LO], nodes=1), "remedy", "=lo; or unset"),
    ("network.host-name", name("10.0.0.2", wanted="eth9", nodes=1), "observed", "no interface that is up$"),
]
