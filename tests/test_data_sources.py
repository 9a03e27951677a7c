"""Sources: what they find, in which order, and what they refuse."""

from __future__ import annotations

import tarfile
import tracemalloc
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import datasets
from trackbed.data.order import Order
from trackbed.data.samples.sources import Source
from trackbed.data.samples.sources.example import parse
from trackbed.data.samples.sources.folder import Folder
from trackbed.data.samples.sources.tfrecord import TFRecord, masked
from trackbed.data.samples.sources.tokens import TokenFiles
from trackbed.data.samples.sources.webdataset import WebDataset
from trackbed.errors import DataError


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKBED_CACHE", str(tmp_path / "cache"))


def everything(source: Source) -> list[tuple[bytes, int]]:
    return [(sample.data, sample.label) for sample in map(source.read, range(len(source)))]


def test_a_folder_is_in_order_of_class_and_name(tmp_path: Path) -> None:
    path = datasets.folder(tmp_path / "set")
    (path / "ant" / "notes.txt").write_text("no picture")
    (path / ".cache").mkdir()
    found = Folder(path)
    assert found.classes == ["ant", "bee", "cat"]
    assert everything(found) == [(datasets.picture(n), min(n // 3, 2)) for n in range(datasets.COUNT)]
    assert found.where(0) == str(path / "ant" / "000.jpg")


def test_a_label_means_the_same_in_two_folders(tmp_path: Path) -> None:
    train = Folder(datasets.folder(tmp_path / "train"))
    held = datasets.folder(tmp_path / "held", 3)
    (held / "ant").rename(held / "cat")
    assert {label for _, label in everything(Folder(held, classes=train.classes))} == {2}
    (held / "cat").rename(held / "cow")
    with pytest.raises(DataError, match="cow"):
        Folder(held, classes=train.classes)


@pytest.mark.parametrize(
    "make", [lambda path: None, lambda path: path.mkdir(), lambda path: (path / "ant").mkdir(parents=True)]
)
def test_a_folder_without_samples_is_refused(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "set")
    with pytest.raises(DataError, match=r"nothing to load|no such folder"):
        Folder(tmp_path / "set")


@pytest.mark.parametrize(("kind", "make"), [(WebDataset, datasets.shards), (TFRecord, datasets.records)])
def test_shards_hold_what_was_put_in(tmp_path: Path, kind: Any, make: Any) -> None:
    pictures = [(datasets.picture(number), number % 3) for number in range(datasets.COUNT)]
    wanted = pictures[4:] + pictures[:4] if kind is WebDataset else pictures
    assert everything(kind(make(tmp_path / "set"))) == wanted


@pytest.mark.parametrize(("kind", "make"), [(WebDataset, datasets.shards), (TFRecord, datasets.records)])
def test_an_index_is_kept_until_its_shard_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, make: Any
) -> None:
    path = make(tmp_path / "set")
    first = kind(path)
    with monkeypatch.context() as patch:
        patch.setattr(f"{kind.__module__}._build", None)
        again = kind(path)
        assert everything(again) == everything(first)
        assert again.digest == first.digest
        make(tmp_path / "set", 9)
        with pytest.raises(TypeError):
            kind(path)
    assert kind(path).digest != first.digest


def test_members_of_a_sample_need_not_be_neighbours(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as shard:
        for name, data in {
            "x/a.jpg": b"A",
            "y/a.jpg": b"B",
            "y/a.cls": b"1\n",
            "x/a.cls": b"0",
            "x/a.json": b"{}",
        }.items():
            datasets.add(shard, name, data)
    source = WebDataset(tmp_path / "0.tar")
    assert everything(source) == [(b"A", 0), (b"B", 1)]
    assert source.where(1) == f"{tmp_path / '0.tar'}!y/a"


def test_a_component_that_is_missing_is_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as shard:
        for name, data in {"a.jpg": b"A", "b.cls": b"1", "c.jpg": b"C", "c.cls": b"cat"}.items():
            datasets.add(shard, name, data)
    source = WebDataset(tmp_path)
    for number, told in enumerate(
        ("!a: it has no component cls", "!b: it has no component jpg", "!c.*cls is no class number")
    ):
        with pytest.raises(DataError, match=told):
            source.read(number)
    assert WebDataset(tmp_path, label="").read(0).data == b"A"


@pytest.mark.parametrize("left", [700, 2048, 2500])
def test_shards_that_break_off_are_all_named(tmp_path: Path, left: int) -> None:
    for make, kind in ((datasets.shards, WebDataset), (datasets.records, TFRecord)):
        path = make(tmp_path / kind.__name__)
        for shard in path.iterdir():
            shard.write_bytes(shard.read_bytes()[:left])
        with pytest.raises(DataError) as caught:
            kind(path)
        assert {each.where for each in caught.value.problems} == set(map(str, path.iterdir()))


def test_a_damaged_length_is_found(tmp_path: Path) -> None:
    path = datasets.records(tmp_path) / "0.tfrecord"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="length of the record at byte 0 is damaged"):
        TFRecord(tmp_path)


def test_a_feature_that_is_missing_is_named_with_those_there_are(tmp_path: Path) -> None:
    source = TFRecord(datasets.records(tmp_path), data="picture")
    with pytest.raises(
        DataError, match="record 0: it has no feature picture, but image/class/label, image/encoded, weight"
    ):
        source.read(0)
    assert TFRecord(tmp_path, label="").read(1).label == 0
    with pytest.raises(DataError, match="not of bytes"):
        TFRecord(tmp_path, data="image/class/label").read(0)


def test_the_check_sum_is_the_one_of_tfrecord() -> None:
    crc = 0xE3069283  # CRC-32C of "123456789", RFC 3720's polynomial
    assert masked(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_an_example_is_what_protocol_buffers_make_of_it() -> None:
    """The same message through google.protobuf, with packed and negative numbers."""
    pb2 = import_module("google.protobuf.descriptor_pb2")
    pool = import_module("google.protobuf.descriptor_pool").DescriptorPool()
    factory = import_module("google.protobuf.message_factory")

    file = pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    fields = {
        "BytesList": [("value", 1, 12, 3, "")], "Int64List": [("value", 1, 3, 3, "")],
        "Feature": [("bytes_list", 1, 11, 1, ".t.BytesList"), ("int64_list", 3, 11, 1, ".t.Int64List")],
        "Entry": [("key", 1, 9, 1, ""), ("value", 2, 11, 1, ".t.Feature")],
        "Features": [("feature", 1, 11, 3, ".t.Entry")], "Example": [("features", 1, 11, 1, ".t.Features")],
    }  # fmt: skip
    for name, each in fields.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label, of in each:
            message.field.add(name=field, number=number, type=kind, label=label, type_name=of or None)
    pool.Add(file)
    example = factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))()
    example.features.feature.add(key="text").value.bytes_list.value.extend([b"a", b"", b"c" * 300])
    example.features.feature.add(key="many").value.int64_list.value.extend([0, -1, 2**40, -(2**63)])
    assert parse(example.SerializeToString()) == {"text": [b"a", b"", b"c" * 300], "many": [0, -1, 2**40, -(2**63)]}


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x0b", b"\xff" * 11, b"\x0a"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"byte|field"):
        parse(data)


def test_rows_of_tokens_overlap_by_one(tmp_path: Path) -> None:
    source = TokenFiles(datasets.tokens(tmp_path), 8)
    rows = [np.frombuffer(source.read(number).data, dtype=np.int64).tolist() for number in range(len(source))]
    assert rows == [[*range(n, n + 9)] for n in (0, 8, 16, 24, *range(1000, 1056, 8))]
    assert source.dropped == 3
    assert source.where(5) == f"{tmp_path / '1.npy'} tokens 8 to 16"


def test_files_that_hold_no_tokens_are_all_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(100))
    np.save(tmp_path / "b.npy", np.zeros((10, 10), dtype=np.int64))
    (tmp_path / "c.npy").write_bytes(b"no array")
    (tmp_path / "d.bin").write_bytes(b"")
    with pytest.raises(DataError) as caught:
        TokenFiles(tmp_path, 8)
    assert [Path(each.where).name for each in caught.value.problems] == ["a.npy", "b.npy", "c.npy", "d.bin"]
    (tmp_path / "s").mkdir()
    np.save(tmp_path / "s" / "a.npy", np.arange(8))
    with pytest.raises(DataError, match="no file has the 9 tokens"):
        TokenFiles(tmp_path / "s", 8)


def test_tokens_larger_than_memory_are_not_read_into_it(tmp_path: Path) -> None:
    size = 1 << 27
    with (tmp_path / "0.bin").open("wb") as file:
        file.truncate(2 * size)
    tracemalloc.start()
    source = TokenFiles(tmp_path, 1024)
    order = Order(len(source), seed=0, window=4096)
    for number in order.at(1_000_000, 200):
        source.read(int(number))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(source) == (size - 1) // 1024
    assert peak < 16 << 20
