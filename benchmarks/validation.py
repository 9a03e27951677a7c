"""What this machine does, each figure of `trackbed validate --level deep` as a ratio against a peer in the same run.

    python benchmarks/validation.py            # a table in Markdown on standard output

A machine's own figures say little on another one; how a part compares with a simpler way to do the same says more.
"""

from __future__ import annotations

import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trackbed.validate import MIB, Context
from trackbed.validate.deep import checks, compute, storage
from trackbed.validate.deep import ring as deep_ring

REPEATS = 5


def main() -> None:
    """All figures, then their peers, then the table."""
    with tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-") as folder:
        context = Context(output=Path(folder), level="deep")
        # First: forked ranks and threads of OpenMP do not go together.
        ring = medians(deep_ring.measure_gloo(context))
        busy = [checks.measure_idle(context)["busy"]]
        rows = [*computing(context, ring), *storing(context, Path(folder))]
        busy.append(checks.measure_idle(context)["busy"])
    lines = ["| figure | peer in the same run | ratio |", "|---|---|---|"]
    lines += [f"| {name} | {peer} | {ratio:.2f} |" for name, peer, ratio in rows]
    sys.stdout.write(
        "\n".join([*lines, "", f"CPUs busy with something else: {busy[0]:.0f} % before, {busy[1]:.0f} % after", ""])
    )


def medians(measured: dict[str, Any]) -> dict[str, float]:
    return {name: statistics.median(row["runs"]) for name, row in measured["figures"].items()}


def computing(context: Context, ring: dict[str, float]) -> list[tuple[str, str, float]]:
    memory, products = (medians(measure(context)) for measure in (compute.measure_memory, compute.measure_products))
    images = medians(compute.measure_decode(context))["images"]
    return [
        ("torch copy, all threads", "NumPy copy, one thread", memory["copy"] / numpy_copy()),
        ("torch triad", "torch copy", memory["triad"] / memory["copy"]),
        ("matrix product in bfloat16", "in float32", products["bfloat16"] / products["float32"]),
        ("gloo all-reduce of 64 MiB, two ranks", "torch copy", ring["64 MiB"] / memory["copy"]),
        ("gloo all-reduce of 64 KiB", "of 64 MiB", ring["64 KiB"] / ring["64 MiB"]),
        ("DALI decode, one core", "Pillow decode, one core", images / pillow()),
    ]


def storing(context: Context, folder: Path) -> list[tuple[str, str, float]]:
    write = medians(storage.measure_write(context))["write"]
    read = medians(storage.measure_read(context))["read"]
    small = medians(storage.measure_small_reads(context))
    lazy, cached = in_memory(folder / "peer")
    return [
        ("checkpoint write, on the disk", "write into the page cache", write / lazy),
        ("checkpoint read, from the disk", "read from the page cache", read / cached),
        ("small reads, p99", "p50", small["p99"] / small["p50"]),
    ]


def rate(amount: float, work: Callable[[], object]) -> float:
    """`amount` a second, the median of repeats; the first is not counted."""
    rates = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        work()
        rates.append(amount / (time.perf_counter() - started))
    return statistics.median(rates[1:])


def numpy_copy() -> float:
    """GB/s, reads and writes counted as in the check."""
    import numpy as np

    size = compute.MEMORY_BYTES
    source, target = np.ones(size // 4, np.float32), np.zeros(size // 4, np.float32)
    return rate(2 * size / 1e9, lambda: np.copyto(target, source))


def pillow() -> float:
    """Images a second of the same JPEG."""
    from PIL import Image

    encoded = compute.photograph()
    return rate(20, lambda: [Image.open(io.BytesIO(encoded)).convert("RGB") for _ in range(20)])


def in_memory(path: Path) -> tuple[float, float]:
    """MiB/s of writing without waiting for the disk, and of reading what is still in memory."""
    chunk = bytes(storage.CHUNK)

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            for _ in range(storage.BYTES // len(chunk)):
                file.write(chunk)

    def read() -> None:
        buffer = bytearray(storage.CHUNK)
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    size = storage.BYTES / MIB
    return rate(size, write), rate(size, read)


if __name__ == "__main__":
    main()
