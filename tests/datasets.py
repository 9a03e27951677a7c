"""Small real data sets, made by the tests that use them."""

from __future__ import annotations

import io
import struct
import tarfile
import wave
from pathlib import Path

import numpy as np
from PIL import Image

from trackbed.data.samples.sources.tfrecord import masked

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


def shards(path: Path, count: int = COUNT) -> Path:
    """The same pictures in two tar shards of uneven size, class numbers as text."""
    path.mkdir(parents=True, exist_ok=True)
    for name, part in (("b-1", range(0, 4)), ("a-0", range(4, count))):
        with tarfile.open(path / f"{name}.tar", "w") as shard:
            for number in part:
                add(shard, f"photos/{number:03}.jpg", picture(number))
                add(shard, f"photos/{number:03}.cls", str(number % 3).encode())
    return path


def add(shard: tarfile.TarFile, name: str, data: bytes) -> None:
    """A member of a tar file."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    shard.addfile(member, io.BytesIO(data))


def records(path: Path, count: int = COUNT) -> Path:
    """The same pictures in two TFRecord files."""
    path.mkdir(parents=True, exist_ok=True)
    examples = [example(picture(number), number % 3) for number in range(count)]
    (path / "0.tfrecord").write_bytes(b"".join(map(record, examples[:7])))
    (path / "1.tfrecord").write_bytes(b"".join(map(record, examples[7:])))
    return path


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


def example(data: bytes, label: int) -> bytes:
    """tf.train.Example with the features image/encoded and image/class/label, and one of floats."""
    features = {
        b"image/encoded": field(1, field(1, data)),
        b"image/class/label": field(3, field(1, number(label))),
        b"weight": field(2, field(1, struct.pack("<f", 1.5))),
    }
    return field(1, b"".join(field(1, field(1, name) + field(2, value)) for name, value in features.items()))


def field(wanted: int, data: bytes) -> bytes:
    """A length-delimited field of a protocol buffer."""
    return number(wanted << 3 | 2) + number(len(data)) + data


def number(value: int) -> bytes:
    """A varint."""
    made = []
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def tone(hertz: float, seconds: float = 0.3, *, rate: int = 8000, channels: int = 1, before: float = 0) -> bytes:
    """A WAV of 16 bits; `before` are seconds of silence."""
    signal = (np.sin(np.arange(int(seconds * rate)) * hertz * 2 * np.pi / rate) * 2e4).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(bytes(2 * channels * round(before * rate)))
        sound.writeframes(np.repeat(signal, channels).tobytes())
    return file.getvalue()


def sounds(path: Path, count: int = COUNT) -> Path:
    """Tones of several lengths, rates and channels, in three classes."""
    for index in range(count):
        file = path / CLASSES[min(index // 3, 2)] / f"{index:03}.wav"
        file.parent.mkdir(parents=True, exist_ok=True)
        data = tone(300 + 100 * index, 0.1 + 0.04 * index, rate=(8000, 16000)[index % 2], channels=1 + index % 2)
        file.write_bytes(data)
    return path


def tokens(path: Path, rows: int = COUNT, row_length: int = 8) -> Path:
    """A .bin and a .npy file whose rows make up `rows` together; both have a rest that makes no row."""
    path.mkdir(parents=True, exist_ok=True)
    np.arange(4 * row_length + 3, dtype=np.uint16).tofile(path / "0.bin")
    np.save(path / "1.npy", np.arange(1000, 1000 + (rows - 4) * row_length + 2, dtype=np.int32))
    return path
