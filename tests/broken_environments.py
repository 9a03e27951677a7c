"""Containers with one thing wrong, what `trackbed validate` says of it, and what its remedy makes of them."""

from __future__ import annotations

from dataclasses import dataclass

import broken_scripts as shell


@dataclass(frozen=True, kw_only=True)
class Run:
    """One container: flags of `docker run`, and what its shell does; VALIDATE stands for the command."""

    flags: str = ""
    script: str = "exec VALIDATE"


@dataclass(frozen=True, kw_only=True)
class Case:
    """An environment with one thing wrong, what is said of it, and the environment that the remedy makes of it.

    `says` is a status and a check; `observed` a pattern with the number that was measured, where there is one; `remedy`
    the part of the printed one that `mended` does.
    """

    name: str
    broken: Run
    says: str
    observed: str
    remedy: str
    mended: Run = Run()
    around: str = ""
    """Flags of the good container that it is held against, where another job is around it."""

    @property
    def status(self) -> str:
        return self.says.split()[0]

    @property
    def check(self) -> str:
        return self.says.split()[1]


CASES = (
    Case(
        name="shared memory of 64 MB",
        broken=Run(flags="--shm-size=64m"),
        says="fail host.shared-memory",
        observed="^64 MiB in /dev/shm$",
        remedy="docker run --shm-size=1g",
        mended=Run(flags="--shm-size=1g"),
    ),
    Case(
        name="half a CPU",
        broken=Run(flags="--cpus 0.5"),
        says="warn host.cpus",
        observed=r"^0\.5 usable of {cpus}, 2 ranks",
        remedy="docker run --cpus {cpus}",
        mended=Run(flags="--cpus {cpus}"),
    ),
    Case(
        name="memory of 1 GB",
        broken=Run(flags="--memory 1g"),
        says="fail host.memory-limit",
        observed=r"^1 GiB \(limit\)$",
        remedy="docker run --memory 8g",
        mended=Run(flags="--memory 8g"),
    ),
    Case(
        name="1024 open files",
        broken=Run(flags="--ulimit nofile=1024:1024"),
        says="fail host.open-files",
        observed="^1024 open files, may be raised to 1024$",
        remedy="docker run --ulimit nofile=1048576:1048576; where that is refused",
        mended=Run(flags="{files}"),
    ),
    Case(
        name="200 processes",
        broken=Run(flags="--pids-limit 200"),
        says="warn limits.processes",
        observed=r"^1\d\d more may start \(200 allowed\), 2 ranks start up to 128$",
        remedy="docker run --pids-limit",
        mended=Run(flags="--pids-limit -1"),
    ),
    Case(
        name="64 threads a rank",
        broken=Run(flags="-e OMP_NUM_THREADS={many}"),
        says="fail limits.threads",
        observed="^OMP_NUM_THREADS={many} x 2 ranks on {cpus} CPUs$",
        remedy="docker run -e OMP_NUM_THREADS={share}",
        mended=Run(flags="-e OMP_NUM_THREADS={share}"),
    ),
    Case(
        name="read-only folder for runs",
        broken=Run(flags=f"-v {{volume}}:{shell.RUNS}:ro"),
        says="fail storage.commit",
        observed=f"^cannot make a folder in {shell.RUNS}: EROFS$",
        remedy=f"docker run -v runs:{shell.RUNS} (not :ro)",
        mended=Run(flags=f"-v {{volume}}:{shell.RUNS}"),
    ),
    Case(
        name="full folder for runs",
        broken=Run(flags=f"--tmpfs {shell.RUNS}:size=100m,mode=1777"),
        says="fail storage.free-space",
        observed="^100 MiB free, 0 % used",
        remedy=f"docker run -v /large/disk:{shell.RUNS}",
        mended=Run(flags=f"-v {shell.RUNS}"),
    ),
    Case(
        name="full temporary folder",
        broken=Run(flags="--tmpfs /tmp:size=48m"),
        says="fail container.temporary-folder",
        observed=r"^4\d(\.\d)? MiB free in /tmp",
        remedy="docker run --tmpfs /tmp:size=1g",
        mended=Run(flags="--tmpfs /tmp:size=1g"),
    ),
    Case(
        name="cache mounted noexec",
        broken=Run(flags="--tmpfs /tmp/triton:mode=1777 -e TRITON_CACHE_DIR=/tmp/triton"),
        says="fail container.caches",
        observed="^TRITON_CACHE_DIR /tmp/triton is mounted noexec",
        remedy="--tmpfs /tmp/triton:exec",
        mended=Run(flags="--tmpfs /tmp/triton:exec -e TRITON_CACHE_DIR=/tmp/triton"),
    ),
    Case(
        name="read-only cache of models",
        broken=Run(flags="-v {volume}:/var/lib/trackbed/cache/models:ro"),
        says="warn container.caches",
        observed=r"^HF_HOME \S+ is not writable \(EROFS\)$",
        remedy="or -e HF_HOME=/a/local/folder",
        mended=Run(flags="-v {volume}:/var/lib/trackbed/cache/models:ro -e HF_HOME=/tmp/huggingface"),
    ),
    Case(
        name="no copies between processes",
        broken=Run(flags="--security-opt seccomp={seccomp} -e OMPI_MCA_smsc=cma"),
        says="warn container.process-copy",
        observed=r"^OMPI_MCA_smsc asks for copies between processes, which the kernel refuses \(EPERM\)$",
        remedy="docker run --cap-add SYS_PTRACE",
        mended=Run(flags="--security-opt seccomp={seccomp} -e OMPI_MCA_smsc=cma --cap-add SYS_PTRACE"),
    ),
    Case(
        name="host name is loopback",
        broken=Run(flags="--hostname node1 --add-host node1:127.0.0.1 -e NNODES=2"),
        says="fail network.host-name",
        observed=r"^node1 resolves to 127\.0\.0\.1, a loopback address, and the job has 2 nodes$",
        remedy="docker run --hostname without --add-host node1:127",
        mended=Run(flags="--hostname node1 -e NNODES=2"),
        around="-e NNODES=2",
    ),
    Case(
        name="NCCL takes lo",
        broken=Run(flags="-e NCCL_SOCKET_IFNAME=^docker0 -e NNODES=2"),
        says="fail network.nccl-interface",
        observed=r"^NCCL_SOCKET_IFNAME=\^docker0: lo of lo, eth0; 2 nodes$",
        remedy="docker run -e NCCL_SOCKET_IFNAME=^lo,docker",
        mended=Run(flags="-e NCCL_SOCKET_IFNAME=^lo,docker -e NNODES=2"),
        around="-e NNODES=2",
    ),
    Case(
        name="misspelt NCCL variable",
        broken=Run(flags="-e NCCL_SOCKET_IFNAMES=eth0"),
        says="warn network.nccl-variables",
        observed="^NCCL does not know NCCL_SOCKET_IFNAMES ",
        remedy="rename NCCL_SOCKET_IFNAMES to NCCL_SOCKET_IFNAME",
        mended=Run(flags="-e NCCL_SOCKET_IFNAME=eth0"),
    ),
    Case(
        name="NCCL variable left from debugging",
        broken=Run(flags="-e NCCL_P2P_DISABLE=1"),
        says="warn network.nccl-variables",
        observed="^NCCL_P2P_DISABLE=1: ",
        remedy="unset NCCL_P2P_DISABLE",
        mended=Run(flags="-e NCCL_P2P_DISABLE=1", script="unset NCCL_P2P_DISABLE; exec VALIDATE"),
    ),
    Case(
        name="gloo's interface is not there",
        broken=Run(flags="-e GLOO_SOCKET_IFNAME=ib0"),
        says="fail network.host-name",
        observed="^GLOO_SOCKET_IFNAME=ib0, but ib0 is no interface that is up$",
        remedy="export GLOO_SOCKET_IFNAME=eth0; or unset GLOO_SOCKET_IFNAME",
        mended=Run(flags="-e GLOO_SOCKET_IFNAME=eth0"),
    ),
    Case(
        name="gloo's interface is not there on two nodes",
        broken=Run(flags="-e GLOO_SOCKET_IFNAME=ib0 -e NNODES=2"),
        says="fail network.host-name",
        observed="^GLOO_SOCKET_IFNAME=ib0, but ib0 is no interface that is up, and the job has 2 nodes$",
        remedy="export GLOO_SOCKET_IFNAME=eth0; or unset GLOO_SOCKET_IFNAME",
        mended=Run(flags="-e NNODES=2 -e GLOO_SOCKET_IFNAME=ib0", script="unset GLOO_SOCKET_IFNAME; exec VALIDATE"),
        around="-e NNODES=2",
    ),
    Case(
        name="port in use",
        broken=Run(flags="-e MASTER_PORT=29500", script=f"{shell.LISTENING}exec VALIDATE"),
        says="fail network.ports",
        observed="^MASTER_PORT 29500 is in use by python3 -m http.server 29500$",
        remedy="end that process",
        mended=Run(
            flags="-e MASTER_PORT=29500", script=f"{shell.LISTENING}kill $server; wait $server || true; exec VALIDATE"
        ),
    ),
    Case(
        name="lock of a killed build",
        broken=Run(script=f"{shell.STALE_LOCK}; exec VALIDATE"),
        says="fail deepspeed.stale-lock",
        observed=f"^{shell.BUILD}/lock is 120 minutes old and nobody builds$",
        remedy=f"rm {shell.BUILD}/lock",
        mended=Run(script=f"{shell.STALE_LOCK}; rm {shell.BUILD}/lock; exec VALIDATE"),
    ),
    Case(
        name="no compiler",
        broken=Run(flags="-e CXX=g++"),
        says="fail deepspeed.compiler",
        observed=r"^there is no compiler g\+\+$",
        remedy="unset CXX",
        mended=Run(flags="-e CXX=g++", script="unset CXX; exec VALIDATE"),
    ),
    Case(
        name="no compiler for a job that compiles",
        broken=Run(flags="--user 0 -e TRACKBED_COMPILER=1", script=f"{shell.AS_USER} VALIDATE"),
        says="fail deepspeed.compiler",
        observed=r"^there is no compiler c\+\+$",
        remedy="apt-get install g++ python3-dev",
        mended=Run(flags="--user 0 -e TRACKBED_COMPILER=1", script=f"{shell.COMPILER}; {shell.AS_USER} VALIDATE"),
    ),
    Case(
        name="another protobuf",
        broken=Run(script=f"{shell.PIP} protobuf==6.33.0; exec VALIDATE"),
        says="fail stack.drift",
        observed=r"^protobuf: 6\.33\.0 is loaded, the release wants [\d.]+$",
        remedy="or start a fresh container",
    ),
    Case(
        name="a protobuf that breaks TensorBoard's import",
        broken=Run(script=f"{shell.PIP} protobuf==5.29.5; exec VALIDATE"),
        says="fail stack.drift",
        observed=r"^protobuf: 5\.29\.5 is loaded, the release wants [\d.]+$",
        remedy="pip install 'protobuf==",
        mended=Run(script=f"{shell.PIP} protobuf==5.29.5; {shell.PINNED_PROTOBUF}; exec VALIDATE"),
    ),
    Case(
        name="another TensorBoard",
        broken=Run(script=f"{shell.PIP} tensorboard==2.20.0; exec VALIDATE"),
        says="fail stack.drift",
        observed=r"^tensorboard: .*2\.20\.0",
        remedy="or start a fresh container",
    ),
    Case(
        name="variable declares another version",
        broken=Run(flags="-e DALI_VERSION=9"),
        says="fail stack.drift",
        observed=r"^dali: .*9",
        remedy="start a fresh container with no version set by -e",
    ),
    Case(
        name="another OpenMP in LD_LIBRARY_PATH",
        broken=Run(flags="-e LD_LIBRARY_PATH=/tmp/other", script=f"{shell.SHADOW}; exec VALIDATE"),
        says="fail cuda.loaded-libraries",
        observed="^/tmp/other/libgomp.so.1 is loaded in place of the environment's own$",
        remedy="unset LD_LIBRARY_PATH",
        mended=Run(
            flags="-e LD_LIBRARY_PATH=/tmp/other", script=f"{shell.SHADOW}; unset LD_LIBRARY_PATH; exec VALIDATE"
        ),
    ),
    Case(
        name="mpirun by root",
        broken=Run(flags="--user 0"),
        says="warn mpi.root",
        observed="^mpirun refuses root: OMPI_ALLOW_RUN_AS_ROOT and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM not set$",
        remedy="-e OMPI_ALLOW_RUN_AS_ROOT=1 -e OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
        mended=Run(flags="--user 0 -e OMPI_ALLOW_RUN_AS_ROOT=1 -e OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"),
    ),
    Case(
        name="privileged container",
        broken=Run(flags="--privileged"),
        says="warn container.privileges",
        observed="^started with --privileged$",
        remedy="leave out --privileged",
    ),
    Case(
        name="the engine's socket in the container",
        broken=Run(flags=f"--user 0 -v {shell.SOCKET}:{shell.SOCKET}", script=f"{shell.AS_ITS_GROUP} VALIDATE"),
        says="fail container.privileges",
        observed="^/var/run/docker.sock is mounted: whoever may write to it is root on the host$",
        remedy="leave out -v /var/run/docker.sock:/var/run/docker.sock",
    ),
    Case(
        name="shell keeps SIGTERM",
        broken=Run(script="VALIDATE; exit $?"),
        says="warn container.stop-signal",
        observed=r"^`sh -ec .*` \(PID 1\) does not pass SIGTERM on$",
        remedy="put `exec` before it in its shell",
        mended=Run(script="exec VALIDATE"),
    ),
    Case(
        name="too many data workers",
        broken=Run(flags="-e TRACKBED_LOADER_WORKERS={many}"),
        says="fail loader.workers",
        observed="^2 ranks x {many} data workers = ",
        remedy="TRACKBED_LOADER_WORKERS={share}",
        mended=Run(flags="-e TRACKBED_LOADER_WORKERS={share}"),
    ),
    Case(
        name="truncated checkpoint",
        broken=Run(script=f"{shell.TRUNCATED}exec VALIDATE"),
        says="fail checkpoint.newest",
        observed="^demo/step-00000004: random-rank00000.pt has 1000 bytes, not 4096; the newest whole one is step-0+2$",
        remedy=shell.PASS_OVER,
        mended=Run(script=f"{shell.TRUNCATED}{shell.PASS_OVER}; exec VALIDATE"),
    ),
    Case(
        name="left-overs of a killed run",
        broken=Run(script=f"{shell.HALF_WRITTEN}exec VALIDATE"),
        says="warn storage.leftovers",
        observed=r"^3 MiB left behind: \S+/\.step-00000004\.partial \(half-written, 3 MiB, 3\.0 hours old\)$",
        remedy="trackbed validate --clean",
        mended=Run(script=f"{shell.HALF_WRITTEN}trackbed validate --clean >&2; exec VALIDATE"),
    ),
    Case(
        name="clock that is an hour ahead",
        broken=Run(flags="--user 0", script=shell.AN_HOUR_AHEAD),
        says="warn container.file-times",
        observed=rf"^a new file in {shell.RUNS} is 3\.6e\+03 s behind this machine's clock$",
        remedy="synchronize the clocks of this machine",
        mended=Run(flags="--user 0", script=f"{shell.AS_USER} VALIDATE"),
    ),
)
