"""Images: a random crop and flip to train on, the centre to evaluate on, both from the same two decoders.

`fast` decodes and resizes in worker threads (`trackbed.data.samples.decode`) and leaves flip, normalisation, type and
layout to DALI; `dali` leaves everything to DALI, on a GPU with its hardware decoder. The crop is the same. Measured
on photographs of 1024 x 768 and 500 x 375, the two differ by 0.1 of 255 on average where the JPEG is decoded at its
full size, and by about 1 where it is decoded at a half or a quarter: another filter, and at most half a pixel of
shift.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from nvidia.dali import fn, types

from trackbed.data.samples import decode
from trackbed.data.samples.corrupt import image_fault
from trackbed.data.samples.decode import Box
from trackbed.data.samples.graph import Array, Drawn

# Crops that are tried before the largest one in the middle is taken: few shapes of image fail more than once.
TRIES = 10


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """How images become tensors. mean and std are of each colour, on a scale from 0 to 1; uint8 is not normalised."""

    size: int = 224
    """Side of what comes out, in pixels."""
    resize: int = 256
    """Evaluation: the shorter side is this long before the middle `size` pixels are taken."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    dtype: Literal["float32", "float16", "uint8"] = "float32"
    layout: Literal["CHW", "HWC"] = "CHW"
    area: tuple[float, float] = (0.08, 1.0)
    """Training: share of the image that a crop has."""
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    """Training: how often an image is mirrored."""
    decode: Literal["fast", "dali"] = "fast"


class Images:
    """Encoded images to float [3, size, size] (HWC: [size, size, 3]). An orientation in EXIF is not applied."""

    draws = 2 * TRIES + 3

    def __init__(self, settings: ImageSettings, *, train: bool, gpu: bool = False) -> None:
        self._given, self._train, self._gpu = settings, train, gpu
        self._fast = settings.decode == "fast"
        self.names: Sequence[str] = ["image", "mirror"] if self._fast else ["image", "mirror", "start", "shape"]
        self.settings = f"{settings} train={train} gpu={gpu}"

    def fault(self, data: bytes) -> str:
        return image_fault(data)

    def sample(self, data: bytes, drawn: Drawn) -> tuple[Array, ...]:
        height, width = decode.size(data)
        mirror = np.array(self._train and drawn[-1] < self._given.flip, dtype=np.int32)
        box = self._box(height, width, drawn)
        if self._fast:
            return decode.crop(data, box, self._given.size), mirror
        return _encoded(data, mirror, box)

    def blank(self) -> tuple[Array, ...]:
        mirror = np.array(0, dtype=np.int32)
        if self._fast:
            return np.zeros((3, self._given.size, self._given.size), dtype=np.uint8), mirror
        return _encoded(decode.blank(), mirror, decode.BLANK)

    def graph(self) -> Sequence[Any]:
        pixels = self._decoded() if self._fast else self._encoded()
        whole = self._given.dtype == "uint8"
        normalised = fn.crop_mirror_normalize(
            pixels,
            mirror=fn.external_source(name="mirror", dtype=types.INT32, ndim=0),
            dtype={"float32": types.FLOAT, "float16": types.FLOAT16, "uint8": types.UINT8}[self._given.dtype],
            output_layout=self._given.layout,
            mean=[0.0] if whole else [255 * each for each in self._given.mean],
            std=[1.0] if whole else [255 * each for each in self._given.std],
        )
        return [normalised]

    def _decoded(self) -> Any:
        pixels = fn.external_source(name="image", dtype=types.UINT8, ndim=3, layout="CHW", no_copy=True)
        return pixels.gpu() if self._gpu else pixels

    def _encoded(self) -> Any:
        cut = fn.decoders.image_slice(
            fn.external_source(name="image", dtype=types.UINT8, ndim=1, no_copy=True),
            fn.external_source(name="start", dtype=types.INT32, ndim=1),
            fn.external_source(name="shape", dtype=types.INT32, ndim=1),
            device="mixed" if self._gpu else "cpu",
            axis_names="HW",
            normalized_anchor=False,
            normalized_shape=False,
            adjust_orientation=False,
        )
        side = self._given.size
        return fn.resize(cut, size=(side, side), interp_type=types.INTERP_LINEAR, antialias=True)

    def _box(self, height: int, width: int, drawn: Drawn) -> Box:
        if self._train:
            return random_box(height, width, drawn, area=self._given.area, aspect=self._given.aspect)
        return centre_box(height, width, self._given.size / self._given.resize)


def random_box(height: int, width: int, drawn: Drawn, *, area: tuple[float, float], aspect: tuple[float, float]) -> Box:
    """A crop of random area and aspect ratio, both uniform (the ratio in its logarithm), as in Szegedy et al., 2015.

    drawn: 2 numbers for every try at a shape, then the two of its place. The largest in the middle when none fits.
    """
    low, high = math.log(aspect[0]), math.log(aspect[1])
    for share, shape in drawn[: 2 * TRIES].reshape(TRIES, 2):
        pixels = height * width * (area[0] + share * (area[1] - area[0]))
        ratio = math.exp(low + shape * (high - low))
        tall, wide = round(math.sqrt(pixels / ratio)), round(math.sqrt(pixels * ratio))
        if 0 < tall <= height and 0 < wide <= width:
            top, left = drawn[2 * TRIES : 2 * TRIES + 2] * (height - tall + 1, width - wide + 1)
            return Box(int(top), int(left), tall, wide)
    wide = min(width, max(1, round(height * aspect[1])))
    tall = min(height, max(1, round(width / aspect[0])))
    return Box((height - tall) // 2, (width - wide) // 2, tall, wide)


def centre_box(height: int, width: int, share: float) -> Box:
    """The square in the middle whose side is that share of the shorter side."""
    side = max(1, min(height, width, round(min(height, width) * share)))
    return Box((height - side) // 2, (width - side) // 2, side, side)


def _encoded(data: bytes, mirror: Array, box: Box) -> tuple[Array, ...]:
    start, shape = np.array([box.top, box.left], dtype=np.int32), np.array([box.height, box.width], dtype=np.int32)
    return np.frombuffer(data, dtype=np.uint8), mirror, start, shape
