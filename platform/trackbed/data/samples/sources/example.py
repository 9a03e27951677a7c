"""tf.train.Example, from the bytes of protocol buffers, so that no generated code and no TensorFlow is needed.

message Example    { Features features = 1; }
message Features   { map<string, Feature> feature = 1; }     an entry is { key = 1; value = 2; }
message Feature    { oneof { BytesList = 1; FloatList = 2; Int64List = 3; } }     each { repeated value = 1; }
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
BYTES_LIST, INT64_LIST = 1, 3
FIXED = {FIXED64: 8, FIXED32: 4}

Value = bytes | int
Feature = list[bytes] | list[int]


def parse(data: bytes) -> dict[str, Feature]:
    """The features of bytes and of int64, by name; those of floats are left out. ValueError when it is no message."""
    found: dict[str, Feature] = {}
    for features in _messages(data, 1):
        for entry in _messages(features, 1):
            name = b"".join(_messages(entry, 1)).decode()
            for feature in _messages(entry, 2):
                found[name] = _values(feature)
    return found


def _values(feature: bytes) -> Feature:
    texts = [each for part in _messages(feature, BYTES_LIST) for each in _messages(part, 1)]
    return texts or [each for part in _messages(feature, INT64_LIST) for each in _numbers(part)]


def _messages(data: bytes, wanted: int) -> Iterator[bytes]:
    """The values of one field that are messages, strings or bytes."""
    return (value for number, value in _fields(data) if number == wanted and isinstance(value, bytes))


def _numbers(data: bytes) -> Iterator[int]:
    """int64 values of field 1, packed or one by one; negative ones are stored as two's complement."""
    for number, value in _fields(data):
        if number != 1:
            continue
        if isinstance(value, int):
            yield _signed(value)
            continue
        position = 0
        while position < len(value):
            packed, position = _varint(value, position)
            yield _signed(packed)


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Field numbers and values, in the order of the message; fixed ones as bytes."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        kind = key & 7
        if kind == VARINT:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        if kind != BYTES and kind not in FIXED:
            raise ValueError(f"wire type {kind} at byte {position}")
        length, position = (FIXED[kind], position) if kind in FIXED else _varint(data, position)
        if position + length > len(data):
            raise ValueError(f"it ends in the field at byte {position}")
        yield key >> 3, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number of 7 bits a byte, lowest first, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError(f"a number without an end at byte {position}")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
