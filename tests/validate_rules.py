"""The rules' own table: check, what was measured, the status it must give, what it must say; and small helpers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import psutil

from trackbed.release.drift import Row
from trackbed.release.probe import Found
from trackbed.validate import GIB, MIB, Check
from trackbed.validate.catalogue import CHECKS
from trackbed.validate.data.dali import Differences
from trackbed.validate.machine.storage import Commit
from trackbed.validate.network import comm
from trackbed.validate.network.comm import Sums
from trackbed.validate.stack import versions
from trackbed.validate.stack.monitor import Roundtrip
from trackbed.validate.stack.versions import Drift, Imports

NAN, INF = math.nan, math.inf


def cpus(**changes: Any) -> dict[str, Any]:
    return {"reported": 4, "affinity": 4, "cpuset": 4, "quota": INF, "ranks": 2, **changes}


def memory(**changes: Any) -> dict[str, Any]:
    return {"limit": INF, "available": 16 * GIB, "oom_kills": 0, **changes}


def row(status: Any, **changes: Any) -> Row:
    fields: dict[str, Any] = {"wanted": "1.0", "declared": "", "loaded": "2.0", "note": "2.0 is loaded", **changes}
    fields = {"component": "part", **fields}
    return Row(status=status, requirement="part==1.0", **fields)


def drift(*rows: Row, broken: Sequence[str] = ()) -> Drift:
    return Drift(rows=rows, broken=broken)


def imports(
    *, protobuf: str = "7.1.0", backward: str = "", requirement: str = "<8.0.0,>=6.31.1", moved: Sequence[str] = ()
) -> Imports:
    good = {"torch": Found(version="1"), versions.PROTOBUF: Found(version=protobuf)}
    bad = {**good, "torch": Found(error=backward)}
    return Imports(forward=good, backward=bad, protobuf_requirement=requirement, moved=moved)


def sums(*wrong: int, error: str = "", stderr: str = "") -> Sums:
    records = [{"rank": rank, "dtype": "float32", "wrong": count} for rank, count in enumerate(wrong)]
    return Sums(ranks=2, records=records, error=error, stderr=stderr)


def records(*made: Any) -> Sums:
    return Sums(ranks=2, records=list(made))


def gloo(*wrong: int, unsupported: bool = False) -> Sums:
    """Two ranks' reports; `unsupported` as from torch 2.1, whose gloo has no bfloat16."""
    pairs = [(rank, dtype) for rank in range(2) for dtype in comm.DTYPES]
    more = {"unsupported": True} if unsupported else {}
    return records(
        *(
            {"rank": r, "dtype": d, "wrong": w} | (more if d == "bfloat16" else {})
            for (r, d), w in zip(pairs, wrong, strict=False)
        )
    )


RULES: list[tuple[str, Any, str, str]] = [
    ("host.shared-memory", 16 * GIB, "pass", "16 GiB"),
    ("host.shared-memory", GIB, "pass", "1 GiB"),
    ("host.shared-memory", GIB - 1, "warn", "1024 MiB"),
    ("host.shared-memory", 64 * MIB + 4096, "warn", "64 MiB"),
    ("host.shared-memory", 64 * MIB + 1, "warn", "64 MiB"),
    ("host.shared-memory", 100.5 * MIB, "warn", "100 MiB"),
    ("host.shared-memory", 99.5 * MIB, "warn", "99.5 MiB"),
    ("host.shared-memory", 64 * MIB, "fail", "64 MiB"),
    ("host.shared-memory", 0, "fail", "0 MiB"),
    ("host.shared-memory", None, "fail", "no /dev/shm"),
    ("host.shared-memory", "much", "error", "makes no sense"),
    ("host.shared-memory", -1, "error", "makes no sense"),
    ("host.shared-memory", NAN, "error", "makes no sense"),
    ("host.cpus", cpus(), "pass", "4 usable of 4, 2 ranks of 2 threads"),
    ("host.cpus", cpus(quota=2.0), "warn", "2 usable of 4"),
    ("host.cpus", cpus(quota=0.5), "warn", "0.5 usable of 4"),
    ("host.cpus", cpus(cpuset=3), "warn", "3 usable of 4"),
    ("host.cpus", cpus(affinity=1), "warn", "1 usable of 4"),
    ("host.cpus", cpus(reported=1, affinity=1, cpuset=1), "warn", "1 usable of 1"),
    ("host.cpus", cpus(cpuset=None), "pass", "4 usable"),
    ("host.cpus", cpus(reported=None), "error", "makes no sense"),
    ("host.cpus", cpus(quota="max"), "error", "makes no sense"),
    ("host.cpus", cpus(affinity=0), "error", "makes no sense"),
    ("host.cpus", {}, "error", "makes no sense"),
    ("host.memory-limit", memory(), "pass", "16 GiB (free)"),
    ("host.memory-limit", memory(limit=16 * GIB), "pass", "16 GiB (free)"),
    ("host.memory-limit", memory(limit=8 * GIB), "pass", "8 GiB (limit)"),
    ("host.memory-limit", memory(limit=8 * GIB - 1), "warn", "(limit)"),
    ("host.memory-limit", memory(available=5 * GIB), "warn", "5 GiB (free)"),
    ("host.memory-limit", memory(available=4 * GIB), "warn", "4 GiB (free)"),
    ("host.memory-limit", memory(limit=4 * GIB - 1), "fail", "(limit)"),
    ("host.memory-limit", memory(oom_kills=2), "warn", "2 processes killed"),
    ("host.memory-limit", memory(limit=None), "error", "makes no sense"),
    ("host.memory-limit", memory(available="all"), "error", "makes no sense"),
    ("host.memory-limit", {}, "error", "makes no sense"),
    ("host.open-files", {"soft": 1048576, "hard": 1048576}, "pass", "1048576"),
    ("host.open-files", {"soft": INF, "hard": INF}, "pass", "unlimited"),
    ("host.open-files", {"soft": 4096, "hard": 65536}, "pass", "4096"),
    ("host.open-files", {"soft": 4095, "hard": 65536}, "warn", "4095"),
    ("host.open-files", {"soft": 65535, "hard": 65535}, "warn", "65535"),
    ("host.open-files", {"soft": 4096, "hard": 4096}, "warn", "4096"),
    ("host.open-files", {"soft": 1024, "hard": 524288}, "warn", "may be raised to 524288"),
    ("host.open-files", {"soft": 20000, "hard": 20000}, "warn", "20000"),
    ("host.open-files", {"soft": 1024, "hard": 4095}, "fail", "4095"),
    ("host.open-files", {"soft": "many", "hard": 4096}, "error", "makes no sense"),
    ("host.open-files", {"soft": 4096, "hard": 1}, "error", "makes no sense"),
    ("host.open-files", {}, "error", "makes no sense"),
    ("host.locked-memory", {"soft": 8 * MIB, "devices": []}, "pass", "no RDMA device"),
    ("host.locked-memory", {"soft": INF, "devices": ["mlx5_0"]}, "pass", "unlimited with 1"),
    ("host.locked-memory", {"soft": 16 * GIB, "devices": ["mlx5_0"]}, "pass", "16 GiB with 1"),
    ("host.locked-memory", {"soft": 16 * GIB - 1, "devices": ["mlx5_0"]}, "warn", "with 1"),
    ("host.locked-memory", {"soft": GIB, "devices": ["mlx5_0"]}, "warn", "1 GiB with 1"),
    ("host.locked-memory", {"soft": GIB - 1, "devices": ["mlx5_0", "mlx5_1"]}, "fail", "with 2"),
    ("host.locked-memory", {"soft": "all", "devices": []}, "error", "makes no sense"),
    ("host.locked-memory", {"soft": INF}, "error", "makes no sense"),
    ("stack.drift", drift(row("ok")), "pass", "1 components"),
    ("stack.drift", drift(row("ok"), row("drift")), "fail", "part: 2.0 is loaded"),
    ("stack.drift", drift(row("missing", note="it hangs")), "fail", "part: it hangs"),
    ("stack.drift", drift(row("missing", note="it hangs"), broken=["part"]), "skip", "part: the import breaks"),
    ("stack.drift", drift(row("ok"), broken=["part"]), "pass", "1 components"),
    ("stack.drift", drift(), "error", "list of components"),
    ("stack.drift", Drift(rows=None), "error", "could not be read"),  # type: ignore[arg-type]
    ("stack.imports", imports(), "pass", "2 modules in both orders, protobuf 7.1.0"),
    ("stack.imports", imports(backward="ImportError: symbol"), "fail", "torch, in reverse order: ImportError"),
    ("stack.imports", imports(backward="ImportError: symbol", moved=["part"]), "skip", "so that: torch, in"),
    ("stack.imports", imports(protobuf="8.0.0", moved=["protobuf"]), "skip", "protobuf not as the release"),
    ("stack.imports", imports(moved=["part"]), "pass", "2 modules in both orders"),
    ("stack.imports", imports(protobuf="8.0.0"), "fail", "protobuf 8.0.0 is outside"),
    ("stack.imports", imports(protobuf="6.31.0"), "fail", "protobuf 6.31.0 is outside"),
    ("stack.imports", imports(protobuf="6.31.1"), "pass", "protobuf 6.31.1"),
    ("stack.imports", imports(protobuf="8.0", requirement="<=8"), "pass", "protobuf 8.0"),
    ("stack.imports", imports(protobuf="8.1", requirement="<=8"), "fail", "protobuf 8.1 is outside"),
    ("stack.imports", imports(protobuf="5.9.1", requirement=">5.9"), "pass", "protobuf 5.9.1"),
    ("stack.imports", imports(protobuf="5.9", requirement=">5.9"), "fail", "protobuf 5.9 is outside"),
    ("stack.imports", imports(protobuf="5.29.0", requirement="==5.29"), "pass", "protobuf 5.29.0"),
    ("stack.imports", imports(protobuf="5.29.1", requirement="!=5.29"), "pass", "protobuf 5.29.1"),
    ("stack.imports", imports(protobuf="5.29.0", requirement="!=5.29"), "fail", "protobuf 5.29.0 is outside"),
    ("stack.imports", imports(protobuf="new"), "fail", "protobuf new is outside"),
    ("stack.imports", imports(protobuf=""), "fail", "protobuf unknown"),
    ("stack.imports", imports(requirement=""), "fail", "unknown range"),
    ("stack.imports", Imports(forward={}, backward={}, protobuf_requirement=""), "error", "could not be read"),
    (
        "stack.imports",
        Imports(forward={"torch": Found(version="1")}, backward={}, protobuf_requirement="<8"),
        "error",
        "makes no sense",
    ),
    ("data.dali-decode", Differences(decode=0, resize=2, normalise=1e-6), "pass", "resize 2"),
    ("data.dali-decode", Differences(decode=1, resize=0, normalise=0), "fail", "decode 1"),
    ("data.dali-decode", Differences(decode=0, resize=3, normalise=0), "fail", "resize 3"),
    ("data.dali-decode", Differences(decode=0, resize=0, normalise=1.0), "fail", "normalise 1"),
    ("data.dali-decode", Differences(decode=0, resize=INF, normalise=0), "fail", "resize inf"),
    ("data.dali-decode", Differences(decode=0, resize=NAN, normalise=0), "error", "makes no sense"),
    ("data.dali-decode", Differences(decode=0, resize="little", normalise=0), "error", "makes no sense"),  # type: ignore[arg-type]
    ("data.dali-decode", None, "error", "could not be read"),
    ("comm.gloo-all-reduce", gloo(0, 0, 0, 0), "pass", "2 ranks"),
    ("comm.gloo-all-reduce", gloo(0, 7, 0, 0), "fail", "rank 0 got 7 wrong bfloat16 elements"),
    ("comm.gloo-all-reduce", gloo(0, 0, 0), "fail", "rank 1 reported no bfloat16 sum"),
    ("comm.gloo-all-reduce", gloo(), "fail", "rank 0 reported no float32 sum"),
    ("comm.gloo-all-reduce", gloo(0, 0, 0, 0, unsupported=True), "warn", "none for bfloat16"),
    ("comm.gloo-all-reduce", gloo(0, 7, 0, 0, unsupported=True), "fail", "rank 0 got 7 wrong"),
    ("comm.gloo-all-reduce", records("garbage"), "error", "makes no sense"),
    ("comm.gloo-all-reduce", records({"rank": 0, "dtype": "float32", "wrong": None}), "error", "makes no sense"),
    ("comm.gloo-all-reduce", sums(error="timed out"), "fail", "timed out"),
    ("comm.gloo-all-reduce", Sums(ranks=2, records=[], skip="no interface ib0"), "skip", "no interface ib0"),
    ("comm.mpi-all-reduce", sums(0, 0), "pass", "2 ranks"),
    ("comm.mpi-all-reduce", sums(0, 0, stderr="a\nRead -1, expected 8388608, errno = 1\n"), "warn", "refuses"),
    ("comm.mpi-all-reduce", sums(0, 1, stderr="Read -1, expected 8"), "fail", "rank 1 got 1 wrong"),
    ("comm.mpi-all-reduce", sums(0), "fail", "rank 1 reported no"),
    ("comm.mpi-all-reduce", sums(error="there is no mpirun"), "fail", "there is no mpirun"),
    ("comm.mpi-all-reduce", records([]), "error", "makes no sense"),
    ("monitor.tensorboard-roundtrip", Roundtrip(written=[(0, 1.0)], read=[(0, 1.0)]), "pass", "1 values"),
    ("monitor.tensorboard-roundtrip", Roundtrip(written=[(0, 1.0)], read=[(0, 2.0)]), "fail", "0 of 1 equal"),
    ("monitor.tensorboard-roundtrip", Roundtrip(written=[(0, 1.0)], read=[(1, 1.0)]), "fail", "0 of 1 equal"),
    ("monitor.tensorboard-roundtrip", Roundtrip(written=[(0, 1.0)], read=[(0, NAN)]), "fail", "0 of 1 equal"),
    ("monitor.tensorboard-roundtrip", Roundtrip(written=[(0, 1.0)], read=[]), "fail", "0 values read"),
    ("monitor.tensorboard-roundtrip", Roundtrip(written=[], read=[]), "error", "what was written"),
    ("monitor.tensorboard-roundtrip", Roundtrip(written=[], read=[], broken="VersionError: 5"), "skip", "VersionError"),
    ("storage.commit", Commit(folder="f", written="a", read="a", seconds=0.5), "pass", "128 MiB/s"),
    ("storage.commit", Commit(folder="f", written="a", read="b", seconds=0.5), "fail", "other bytes"),
    ("storage.commit", Commit(folder="f", written="a", read="", seconds=0.5), "fail", "other bytes"),
    ("storage.commit", Commit(folder="f", step="write", error="ENOSPC"), "fail", "cannot write in f: ENOSPC"),
    ("storage.commit", Commit(folder="f", step="rename", error="E_NEW"), "fail", "cannot rename in f: E_NEW"),
    ("storage.commit", Commit(folder="f", written="a", read="a", seconds=-1), "error", "makes no sense"),
    ("storage.commit", Commit(folder="f"), "error", "could not be read"),
]

# What else an outcome says, where a rule decides it: check, measured, the field, a pattern. See tests/test_mutation.py.
TEXTS: list[tuple[str, Any, str, str]] = [
    ("host.open-files", {"soft": 20000, "hard": 20000}, "remedy", "^docker run --ulimit"),
    ("host.open-files", {"soft": 1024, "hard": 65535}, "remedy", "^ulimit -n 65535; docker run"),
    ("host.open-files", {"soft": 1024, "hard": 65536}, "remedy", "^ulimit -n 65536$"),
    ("stack.drift", drift(row("drift")), "remedy", "uv pip install part==1.0"),
    ("stack.drift", drift(row("drift")), "evidence", "declared=- loaded=2.0"),
    ("stack.drift", drift(row("drift", loaded="", declared="1.5")), "evidence", "declared=1.5 loaded=-"),
    ("stack.drift", drift(row("drift"), row("missing", component="b"), broken=["b"]), "observed", "^part: [^;]*$"),
    ("stack.drift", drift(row("missing"), broken=["part"]), "remedy", "^do what stack.imports says$"),
    ("stack.imports", imports(protobuf="8.0.0", moved=["protobuf"]), "remedy", "^do what stack.drift says$"),
    ("storage.commit", Commit(folder="f", written="a", read="", seconds=0.5), "evidence", "read -$"),
]


def check(name: str) -> Check:
    return next(check for check in CHECKS if check.id == name)


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
