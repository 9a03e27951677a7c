"""From a file's bytes to the pixels of a crop, on a CPU, in a worker thread.

A JPEG is decoded by libjpeg-turbo at the smallest of 1/1, 1/2, 1/4 and 1/8 of its size that leaves the crop at least as
large as what is asked for: the inverse DCT then makes only those pixels. Every thread decodes into one buffer of its
own, again and again: memory that is new for every picture costs a page fault for every 4 KiB of it.
"""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import simplejpeg  # type: ignore[import-untyped]
import torch
from PIL import Image

from trackbed.data.samples.jpeg import START, SizeError, jpeg_size

Pixels = npt.NDArray[np.uint8]

SCALES = (8, 4, 2)
MOST_PIXELS = 89_478_485  # what PIL itself warns about: a quarter of a GiB, decoded
WITHOUT_SCALE = ("I", "F")
"""PIL's kinds of pixels of 32 bits: integers and floats."""
_thread = threading.local()


@dataclass(frozen=True)
class Box:
    """A part of an image, in pixels of the whole."""

    top: int
    left: int
    height: int
    width: int


BLANK = Box(0, 0, 8, 8)


def size(data: bytes) -> tuple[int, int]:
    """Height and width of an encoded image, by its header. SizeError when it has none, or more than MOST_PIXELS."""
    height, width = jpeg_size(data) if data.startswith(START) else _other_size(data)
    if height * width > MOST_PIXELS:
        raise SizeError(f"it is too large: {width} x {height} pixels, at most {MOST_PIXELS}")
    return height, width


def crop(data: bytes, box: Box, side: int) -> Pixels:
    """That part of the image as [3, side, side], resized with a triangle filter. Raises ValueError."""
    pixels, scale = _decode(data, box, side)
    top, bottom = _nearest(box.top, box.height, scale)
    left, right = _nearest(box.left, box.width, scale)
    # Copied by NumPy: torch would do it with a team of threads for every worker, and they cost more than the copy.
    cut = np.ascontiguousarray(pixels[top:bottom, left:right])
    part = torch.from_numpy(cut).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(part, size=(side, side), mode="bilinear", antialias=True)
    # One pixel wide, it comes out with its colours innermost.
    return resized[0].contiguous().numpy()


def blank() -> bytes:
    """A small black JPEG of the size of BLANK."""
    black = np.zeros((BLANK.height, BLANK.width, 3), dtype=np.uint8)
    return bytes(simplejpeg.encode_jpeg(black, colorspace="RGB"))


def _nearest(start: int, length: int, scale: int) -> tuple[int, int]:
    """Start and end among the pixels that are left: within half of one of them, which is at most one of the result."""
    first = min(round(start / scale), (start + length - 1) // scale)
    return first, max(first + 1, round((start + length) / scale))


def scale_for(box: Box, side: int) -> int:
    """By how much a JPEG may be made smaller in decoding, so that no pixel of the result is made up."""
    return next((scale for scale in SCALES if min(box.height, box.width) // scale >= side), 1)


def _decode(data: bytes, box: Box, side: int) -> tuple[Pixels, int]:
    """The whole image at 1/scale, [height, width, 3], valid until this thread decodes the next one."""
    if not data.startswith(START):
        return _other(data), 1
    height, width = jpeg_size(data)
    scale = scale_for(box, side)
    least = {"min_height": -(-height // scale), "min_width": -(-width // scale)} if scale > 1 else {}
    pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", buffer=_buffer(height * width * 3), **least)
    return pixels, scale


def _other_size(data: bytes) -> tuple[int, int]:
    try:
        with Image.open(io.BytesIO(data)) as opened:
            return opened.height, opened.width
    except Image.DecompressionBombError as error:
        raise SizeError(f"it is too large: at most {MOST_PIXELS} pixels") from error
    except Exception as error:
        # PIL's decoders raise what they like on broken files.
        raise SizeError(f"it begins with 0x{data[:4].hex()}: no image format that is known here") from error


def _other(data: bytes) -> Pixels:
    try:
        with Image.open(io.BytesIO(data)) as opened:
            return _deep(opened) if opened.mode.startswith("I;16") else np.array(opened.convert("RGB"))
    except Exception as error:
        raise ValueError(f"it does not decode: {type(error).__name__}") from error


def _deep(opened: Image.Image) -> Pixels:
    """Grey of 16 bits in 8, three times. PIL's own conversion cuts off at 255, and all but black becomes white."""
    grey = (np.asarray(opened).astype(np.uint32) * 255 + 32767) // 65535
    return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)


def _buffer(size: int) -> Pixels:
    kept: Pixels | None = getattr(_thread, "buffer", None)
    if kept is None or kept.size < size:
        kept = _thread.buffer = np.empty(size, dtype=np.uint8)
    return kept
