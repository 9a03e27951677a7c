"""What a JPEG's markers say without decoding it (ITU-T T.81, annex B)."""

from __future__ import annotations

from dataclasses import dataclass

START, END = b"\xff\xd8", b"\xff\xd9"
SCAN = 0xDA
# Start of frame: all of C0 to CF but DHT (C4), JPG (C8) and DAC (CC).
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers that stand alone: TEM, RST0 to RST7, SOI.
ALONE = frozenset({0x01, *range(0xD0, 0xD9)})


class SizeError(ValueError):
    """The header of an image that is none."""


@dataclass(frozen=True)
class Header:
    """Size in pixels, colour components (1 grey, 3 YCbCr or RGB, 4 CMYK), and the byte where the first scan begins."""

    height: int
    width: int
    components: int
    scan: int


def header(data: bytes) -> Header:
    """Read the segments up to the first scan. SizeError when they end, or are none."""
    if not data.startswith(START):
        raise SizeError("it does not begin as a JPEG")
    frame: tuple[int, int, int] | None = None
    position = len(START)
    while position + 4 <= len(data) and data[position] == 0xFF:
        kind, length = data[position + 1], int.from_bytes(data[position + 2 : position + 4])
        if kind == 0xFF or kind in ALONE:
            position += 1 if kind == 0xFF else 2
            continue
        if kind in FRAMES and length >= 8 and position + 10 <= len(data):
            frame = _frame(data[position + 5 : position + 10])
        if kind == SCAN and frame:
            return Header(*frame, scan=position)
        position += 2 + length
    raise SizeError("its header breaks off before the first scan")


def jpeg_size(data: bytes) -> tuple[int, int]:
    """Height and width. SizeError when there is none."""
    found = header(data)
    if not found.height or not found.width:
        raise SizeError("it has no pixels")
    return found.height, found.width


def _frame(segment: bytes) -> tuple[int, int, int]:
    return int.from_bytes(segment[0:2]), int.from_bytes(segment[2:4]), segment[4]
