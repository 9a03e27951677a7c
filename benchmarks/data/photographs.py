"""Photographs to measure with: tiles cut from those of Debian's package lomiri-wallpapers-16.04 (CC BY, BY-SA, CC0).

A tile is 1024 x 768 pixels and about 200 KB, as a camera's picture made smaller, or 500 x 375 and about 110 KB, as
ImageNet's. They are tiles of eleven photographs, not as many photographs.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

PACKAGE = "lomiri-wallpapers-16.04"
SIZES = {"1024x768": (1024, 768, 200_000), "500x375": (500, 375, 110_000)}
QUALITIES = (70, 80, 88, 93, 96)
CLASSES = 4


def make(folder: Path, size: str) -> list[Path]:
    """Write the tiles of one size as FOLDER/CLASS/NUMBER.jpg; returns the files."""
    width, height, wanted = SIZES[size]
    for number, tile in enumerate(_tiles(_pictures(folder.parent), width, height)):
        place = folder / f"class{number % CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:04d}.jpg").write_bytes(_near(tile, wanted))
    return sorted(folder.rglob("*.jpg"))


def _pictures(folder: Path) -> list[Path]:
    found = folder / "package"
    if not found.exists():
        found.mkdir(parents=True)
        command = f"apt-get download -q {PACKAGE} && dpkg-deb -x *.deb ."
        done = subprocess.run(["sh", "-c", command], cwd=found, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"error: {PACKAGE} cannot be fetched, and without photographs there is nothing to measure")
    return sorted(found.rglob("usr/share/backgrounds/*.jpg"))


def _tiles(pictures: list[Path], width: int, height: int) -> Iterator[Image.Image]:
    """Every picture at full and at two thirds of its size (half, for small tiles), cut up without overlap."""
    for path in pictures:
        whole = Image.open(path).convert("RGB")
        for scale in (1.0, 2 / 3) if width > 512 else (0.5,):
            picture = whole.resize((int(whole.width * scale), int(whole.height * scale)))
            for top in range(0, picture.height - height + 1, height):
                for left in range(0, picture.width - width + 1, width):
                    yield picture.crop((left, top, left + width, top + height))


def _near(tile: Image.Image, wanted: int) -> bytes:
    """The tile as a JPEG of the quality whose size is nearest to what is wanted."""
    made = []
    for quality in QUALITIES:
        file = io.BytesIO()
        tile.save(file, "JPEG", quality=quality)
        made.append(file.getvalue())
    return min(made, key=lambda data: abs(len(data) - wanted))
