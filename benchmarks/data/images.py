"""Images a second of our pipeline and of what one would take instead, on the same JPEGs, in one run.

    python benchmarks/data/images.py [FIGURE.svg]      # a table in Markdown on standard output; minutes

All make batches of 32 float32 [3, 224, 224], random resized crop and flip, normalised, in two threads or processes:
torch's DataLoader with Pillow and 0, 1 or 2 workers; WebDataset's loader over the same pictures in tar files; a bare
DALI pipeline, as its own examples write it; and ours with both of its decoders. Each is measured several times in
turn, the median counts.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peers
import photographs
import picture

from trackbed.data.order import Share
from trackbed.data.samples.images import Images, ImageSettings
from trackbed.data.samples.loader import Loader, Loading
from trackbed.data.samples.sources.folder import Folder

ROWS, WORKERS = 32, 2
BATCHES, WARM_UP, ROUNDS = 30, 5, 5
Batches = Iterator[Any]


def main(figure: str = "") -> None:
    groups: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-") as temporary:
        for size in photographs.SIZES:
            files = photographs.make(Path(temporary) / size, size)
            speeds = measure(candidates(Path(temporary) / size))
            table(size, files, speeds)
            groups[f"JPEGs of {size}, images a second, two cores"] = speeds
    if figure:
        picture.bars(Path(figure), groups, "images/s")


def candidates(folder: Path) -> dict[str, Callable[[], Batches]]:
    named: dict[str, Callable[[], Batches]] = {
        f"torch DataLoader, Pillow, {workers} worker{'' if workers == 1 else 's'}": lambda workers=workers: (
            peers.torch_loader(folder, ROWS, workers)
        )
        for workers in (0, 1, 2)
    }
    if peers.has_webdataset():
        named["WebDataset, Pillow, 2 workers"] = lambda: peers.webdataset_loader(folder, ROWS, WORKERS)
    named["bare DALI pipeline"] = lambda: peers.bare_dali(folder, ROWS, WORKERS)
    named["Trackbed, decode: dali"] = lambda: ours(folder, "dali")
    named["Trackbed, decode: fast"] = lambda: ours(folder, "fast")
    return named


def ours(folder: Path, decode: Any) -> Batches:
    work = Images(ImageSettings(decode=decode), train=True)
    loader = Loader(Folder(folder), work, Share(0, 1, ROWS), Loading(workers=WORKERS))
    try:
        while True:
            yield next(loader)
    finally:
        loader.close()


def measure(named: dict[str, Callable[[], Batches]]) -> dict[str, float]:
    """Images a second of each, the median of rounds that go through all of them in turn."""
    speeds: dict[str, list[float]] = {name: [] for name in named}
    for _ in range(ROUNDS):
        for name, make in named.items():
            speeds[name].append(speed(make()))
    return {name: statistics.median(runs) for name, runs in speeds.items()}


def speed(batches: Any) -> float:
    for _ in range(WARM_UP):
        next(batches)
    started = time.monotonic()
    for _ in range(BATCHES):
        next(batches)
    taken = time.monotonic() - started
    if hasattr(batches, "close"):
        batches.close()
    return BATCHES * ROWS / taken


def table(size: str, files: list[Path], speeds: dict[str, float]) -> None:
    best = max(value for name, value in speeds.items() if name.startswith("torch"))
    bare = speeds["bare DALI pipeline"]
    mean = sum(file.stat().st_size for file in files) // len(files) // 1000
    lines = [f"{len(files)} JPEGs of {size}, {mean} KB on average", ""]
    lines += ["| | images/s | of the best torch DataLoader | of bare DALI |", "|---|---|---|---|"]
    lines += [f"| {name} | {v:.0f} | {v / best:.2f} | {v / bare:.2f} |" for name, v in speeds.items()]
    sys.stdout.write("\n".join([*lines, "", ""]))


if __name__ == "__main__":
    main(*sys.argv[1:])
