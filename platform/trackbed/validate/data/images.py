"""A scan of images for what a data loader trips over: in a folder, and in tar shards.

DALI names the file of a truncated JPEG, only the number of a garbage one, and ends the pipeline either way.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trackbed.validate import MIB, amount
from trackbed.validate.data.scan import LIMIT, Fault, Scan

SHARDS = {".tar", ".tgz"}
FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP", ".gif": "GIF", ".bmp": "BMP"}
MAGIC = {
    b"\xff\xd8\xff": "JPEG", b"\x89PNG\r\n\x1a\n": "PNG", b"GIF8": "GIF", b"BM": "BMP", b"RIFF": "WEBP",
    b"II*\0": "TIFF", b"MM\0*": "TIFF",
}  # fmt: skip
MOST_PIXELS = 89_478_485  # what PIL itself warns about: a quarter of a GiB, decoded
MOST_BYTES = 256 * MIB


@dataclass(frozen=True, kw_only=True)
class Image:
    """One encoded image; no bytes when it is too large to be read, or cannot be: then `error` says why."""

    name: str
    suffix: str
    size: int
    data: bytes = b""
    error: str = ""


def scan_images(path: Path, *, limit: int = LIMIT, most_pixels: int = MOST_PIXELS, until: float = float("inf")) -> Scan:
    """Decode every image below a folder and in its tar shards, or in one shard; one image is in memory at a time."""
    scan = Scan(path=path, of="images", limit=limit, until=until)
    files = files_of(path)
    if not files:
        scan.missing = f"there is no image and no tar shard in {path}"
    for file in files:
        if scan.late():
            break
        scan.files += 1
        for image in _shard(file) if file.suffix in SHARDS else _file(file):
            if scan.late():
                break
            _add(scan, image, most_pixels)
    return scan


def files_of(path: Path) -> list[Path]:
    """The images and shards at or below a path."""
    if not path.is_dir():
        return [path] if path.is_file() and path.suffix.lower() in {*FORMATS, *SHARDS} else []
    return sorted(each for each in path.rglob("*") if each.suffix.lower() in {*FORMATS, *SHARDS} and each.is_file())


def _add(scan: Scan, image: Image, most_pixels: int) -> None:
    scan.bytes += image.size
    scan.items += not image.error
    if fault := _fault(image, most_pixels):
        scan.add(fault)


def _file(path: Path) -> Iterator[Image]:
    name, suffix = str(path), path.suffix.lower()
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= MOST_BYTES else b""
        yield Image(name=name, suffix=suffix, size=size, data=data)
    except OSError as error:
        yield Image(name=name, suffix=suffix, size=0, error=f"cannot be read: {error.strerror}")


def _shard(path: Path) -> Iterator[Image]:
    """The images of a tar shard, read from front to back; a shard that is cut off ends in a fault."""
    last = "its first member"
    try:
        with tarfile.open(path, "r|*") as shard:
            for member in shard:
                last = member.name
                suffix = Path(member.name).suffix.lower()
                if member.isfile() and suffix in FORMATS:
                    file = shard.extractfile(member) if member.size <= MOST_BYTES else None
                    data = file.read() if file else b""
                    yield Image(name=f"{path}!{member.name}", suffix=suffix, size=member.size, data=data)
        if path.suffix == ".tar" and not _ended(path):
            # tarfile takes half a header for the end.
            yield _broken(path, f"after {last}, without the two blocks of zeros that end it")
    except (OSError, tarfile.TarError, EOFError) as error:
        yield _broken(path, f"at {last}: {error}")


def _ended(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1024))
        return size % 512 == 0 and file.read() == b"\0" * 1024


def _broken(path: Path, where: str) -> Image:
    return Image(name=str(path), suffix=path.suffix, size=0, error=f"the shard breaks off {where}")


def _fault(image: Image, most_pixels: int) -> Fault | None:
    if image.error:
        return _of(image, "unreadable", image.error, "copy it again")
    if not image.size:
        return _of(image, "zero-byte", "the file is empty", "fetch it again, or delete it")
    if not image.data:
        return _of(image, "huge", f"the file has {amount(image.size)}", "make it smaller before training")
    found = _format(image.data)
    if not found:
        what = f"it begins with 0x{image.data[:4].hex()}: no image format that is known here"
        return _of(image, "wrong-magic", what, "fetch it again, or delete it: often it is a web page or an error text")
    return _decoded(image, most_pixels) or _misnamed(image, found)


def _format(data: bytes) -> str:
    return next((name for magic, name in MAGIC.items() if data.startswith(magic)), "")


def _misnamed(image: Image, found: str) -> Fault | None:
    wanted = FORMATS[image.suffix]
    if found == wanted:
        return None
    what = f"it is a {found}, named as a {wanted}"
    return _of(image, "wrong-suffix", what, f"name it .{found.lower()}: some loaders go by the name", severity="warn")


def _decoded(image: Image, most_pixels: int) -> Fault | None:
    """The fault that decoding the whole image shows; its size is looked at before its pixels are made."""
    from PIL import Image as pil

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pil.open(io.BytesIO(image.data)) as opened:
                width, height = opened.size
                mode = opened.mode
                opened.verify()
            if width * height > most_pixels:
                return _huge(image, f"{width} x {height} pixels")
            with pil.open(io.BytesIO(image.data)) as opened:
                opened.load()
    except pil.DecompressionBombError as error:
        return _huge(image, str(error))
    except Exception as error:  # noqa: BLE001 - PIL's decoders raise what they like on broken files
        text = re.sub(r" <_io\S* object at \w+>", "", " ".join(str(error).split())) or type(error).__name__
        return _of(image, "truncated", f"it does not decode: {text}", "fetch it again, or delete it")
    if mode == "CMYK":
        what = "its colours are CMYK: decoders turn them into different RGB, some into none"
        return _of(image, "cmyk", what, "convert IN -colorspace sRGB OUT, once, for all decoders", severity="warn")
    return None


def _huge(image: Image, what: str) -> Fault:
    return _of(image, "huge", f"it has {what}", "make it smaller: one such image takes a worker's memory")


def _of(
    image: Image, kind: str, what: str, remedy: str, severity: Literal["fail", "warn"] = "fail"
) -> Fault:  # fmt: skip
    return Fault(kind=kind, file=image.name, what=what, remedy=remedy, severity=severity)
