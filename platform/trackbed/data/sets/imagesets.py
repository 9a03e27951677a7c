"""Labelled image sets made from packages: JPEG files in one folder a class, TRAIN and HELDOUT beside each other.

digits: 1,797 handwritten digits of 8 x 8 pixels, carried by scikit-learn's package (UCI ML, Alpaydin and Kaynak, 1998).
fashion-mnist: 70,000 pictures of clothes of 28 x 28 pixels from Debian's package dataset-fashion-mnist (Zalando, MIT).
"""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trackbed import folders, wheels
from trackbed.errors import DataError, Problem
from trackbed.wheels import Progress

Pixels = npt.NDArray[np.uint8]
Picture = tuple[str, str, Pixels]
"""Part (train or heldout), class, and grey pixels [height, width]."""

# Of 1,797 digits the last 357 are held out: the set's order is by writer, so they are other people's hands.
DIGITS_TRAINED_ON = 1440
DIGITS_SCALE = 4
JPEG_QUALITY = 95
FASHION_PACKAGE = "dataset-fashion-mnist"
FASHION_FOLDER = Path("usr/share/datasets/fashion-mnist")
FASHION_CLASSES = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot",
)  # fmt: skip
FASHION_FILES = {"train": "train", "heldout": "t10k"}
FASHION_TOTAL = 70_000


def digits(folder: Path, progress: Progress) -> dict[str, int]:
    """Write the digits as 32 x 32 JPEG files below a folder; returns how many each part has."""
    with folders.staged(folder) as staging:
        wheel = wheels.fetch("scikit-learn", "data.lock", staging, progress)
        with zipfile.ZipFile(wheel) as archive:
            raw = gzip.decompress(archive.read("sklearn/datasets/data/digits.csv.gz"))
        wheel.unlink()
        rows = np.loadtxt(io.BytesIO(raw), delimiter=",", dtype=np.uint8)
        return _write(staging, _digits(rows), len(rows), progress)


def fashion_mnist(folder: Path, progress: Progress) -> dict[str, int]:
    """Write Fashion-MNIST as 28 x 28 JPEG files below a folder; returns how many each part has.

    Taken from where Debian's package puts it, or from the package itself, fetched with apt-get. DataError without both.
    """
    with folders.staged(folder) as staging:
        source = _fashion_folder(staging / "package", progress)
        counts = _write(staging, _fashion(source), FASHION_TOTAL, progress)
        shutil.rmtree(staging / "package", ignore_errors=True)
        return counts


def _digits(rows: npt.NDArray[np.uint8]) -> Iterator[Picture]:
    for number, row in enumerate(rows):
        part = "train" if number < DIGITS_TRAINED_ON else "heldout"
        # 17 levels of grey, from 0 to 16.
        pixels = np.minimum(row[:64].astype(np.int64) * 16, 255).astype(np.uint8).reshape(8, 8)
        yield part, str(row[64]), pixels.repeat(DIGITS_SCALE, axis=0).repeat(DIGITS_SCALE, axis=1)


def _fashion(source: Path) -> Iterator[Picture]:
    for part, prefix in FASHION_FILES.items():
        pictures = _idx(source / f"{prefix}-images-idx3-ubyte.gz", header=16).reshape(-1, 28, 28)
        labels = _idx(source / f"{prefix}-labels-idx1-ubyte.gz", header=8)
        for pixels, label in zip(pictures, labels, strict=True):
            yield part, FASHION_CLASSES[label], pixels


def _idx(path: Path, *, header: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(gzip.decompress(path.read_bytes()), dtype=np.uint8, offset=header)


def _fashion_folder(staging: Path, progress: Progress) -> Path:
    if (Path("/") / FASHION_FOLDER).is_dir():
        return Path("/") / FASHION_FOLDER
    staging.mkdir()
    progress("download", 0, 1)
    commands = [["apt-get", "download", "-q", FASHION_PACKAGE], ["sh", "-c", "dpkg-deb -x *.deb ."]]
    try:
        for command in commands:
            subprocess.run(command, cwd=staging, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise DataError(
            Problem(
                id="data.not-built",
                what=f"the Debian package {FASHION_PACKAGE} is not installed and cannot be fetched: {said[-1]}",
                remedy=f"apt-get update && apt-get install {FASHION_PACKAGE}; without Debian use the set digits",
            )
        ) from error
    progress("download", 1, 1)
    return staging / FASHION_FOLDER


def _write(folder: Path, pictures: Iterator[Picture], total: int, progress: Progress) -> dict[str, int]:
    from PIL import Image

    counts = {"train": 0, "heldout": 0}
    for done, (part, name, pixels) in enumerate(pictures, start=1):
        place = folder / part / name
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).convert("RGB").save(place / f"{counts[part]:05d}.jpg", quality=JPEG_QUALITY)
        counts[part] += 1
        if done % 500 == 0 or done == total:
            progress("pictures", done, total)
    return counts
