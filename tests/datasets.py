"""Small real data sets, made by the tests that use them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

COUNT = 11
CLASSES = ("ant", "bee", "cat")


def picture(number: int, mode: str = "RGB") -> bytes:
    """A JPEG of 70 x 54 pixels or so, of noise that is smooth enough to decode alike everywhere."""
    noise = np.random.default_rng(number).integers(0, 255, (7, 9, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((70 + number, 54), Image.Resampling.BICUBIC).convert(mode).save(file, "JPEG")
    return file.getvalue()


def folder(path: Path, count: int = COUNT) -> Path:
    """`count` pictures, as FOLDER/CLASS/FILE, in three classes of uneven size."""
    for number in range(count):
        file = path / CLASSES[min(number // 3, 2)] / f"{number:03}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(number))
    return path
