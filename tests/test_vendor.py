"""NVIDIA's archives: fetched from a local server, verified, unpacked, found. Every archive here is a fixture."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from trackbed.errors import ReleaseError
from trackbed.release import Component, Release, parse, vendor

HOST = "https://archives.invalid"
PROGRAM = b"#!/bin/sh\necho fixture 1.2.3\n"
FILE = """name = "t"
summary = "for tests"
base_image = "none"

# This comment stays.
[components.tool]
title = "Tool"
version = "1.2"
rule = "exact"
probe = "command:tool"
archive = "https://archives.invalid/a/tool.tar.gz"
{digest}provides = ["tool"]
"""


@dataclass
class Mirror:
    """What the server holds, how often each file was asked for, and which it breaks off."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    truncated: set[str] = field(default_factory=set)


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    held = Mirror()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            held.asked[self.path] += 1
            content = held.files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            half = len(content or b"") // 2 if self.path in held.truncated else None
            self.wfile.write((content or b"")[:half])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    held.address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("VENDOR_MIRROR", f"{held.address}/")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield held
    server.shutdown()
    thread.join()
    server.server_close()


def tar(mode: str, *entries: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{mode}") as archive:  # type: ignore[call-overload]
        for name, content in entries:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def deb(folder: Path, name: str, content: bytes) -> bytes:
    if not shutil.which("dpkg-deb"):
        print("dpkg-deb is not on this machine: the Debian package is not tested")
        pytest.skip("no dpkg-deb")
    root = folder / "package"
    (root / "DEBIAN").mkdir(parents=True)
    control = "Package: fixture\nVersion: 1\nArchitecture: amd64\nMaintainer: nobody <nobody@archives.invalid>\n"
    (root / "DEBIAN" / "control").write_text(f"{control}Description: a fixture\n", "utf-8")
    (root / name).parent.mkdir(parents=True)
    (root / name).write_bytes(content)
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", root, folder / "f.deb"], check=True, capture_output=True
    )
    return (folder / "f.deb").read_bytes()


def part(path: str, content: bytes | None, *provides: str, name: str = "tool") -> Component:
    """A component whose archive is at `path`; pinned to `content`, or to nothing."""
    digest = "" if content is None else hashlib.sha256(content).hexdigest()
    return Component(
        name=name, title=name.title(), version="1.2", rule="exact", probe=f"command:{name}", archive=f"{HOST}{path}",
        digest=digest, provides=provides,
    )  # fmt: skip


@dataclass
class Fetched:
    into: Path
    cache: Path
    said: list[str] = field(default_factory=list)

    def __call__(self, *parts: Component) -> None:
        release = Release(
            name="t", summary="", base_image="none", components={component.name: component for component in parts}
        )
        vendor.fetch(release, self.into, self.cache, self.said.append)

    def refused(self, *parts: Component) -> str:
        with pytest.raises(ReleaseError) as error:
            self(*parts)
        return str(error.value)


@pytest.fixture
def fetch(tmp_path: Path) -> Fetched:
    return Fetched(into=tmp_path / "into", cache=tmp_path / "cache")


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


GZ = tar("gz", ("tool-1.2/bin/tool", PROGRAM), ("tool-1.2/targets/other/bin/tool", b"for another system"))
XZ = tar("xz", ("lib/libthing.so.2", b"library"), ("lib/libthing.so.2.9", b"library"))


def test_programs_are_linked_and_library_folders_listed(mirror: Mirror, fetch: Fetched) -> None:
    mirror.files = {"/a/tool.tar.gz": GZ, "/b/thing.tar.xz": XZ}
    fetch(part("/a/tool.tar.gz", GZ, "tool"), part("/b/thing.tar.xz", XZ, "libthing.so.2", name="thing"))
    done = subprocess.run([fetch.into / "bin" / "tool"], capture_output=True, text=True, check=True)
    assert done.stdout == "fixture 1.2.3\n"
    assert (fetch.into / "ld.conf").read_text() == f"{fetch.into}/thing/lib\n"
    assert [path.name for path in (fetch.into / "bin").iterdir()] == ["tool"]
    assert fetch.said == ["fetching Tool 1.2", "fetching Thing 1.2"]


def test_a_debian_package_is_unpacked_and_not_installed(mirror: Mirror, fetch: Fetched, tmp_path: Path) -> None:
    content = deb(tmp_path, "usr/lib/libgdrapi.so.2", b"library")
    mirror.files = {"/CUDA%2011.4/f.Ubuntu20_04.deb": content}
    fetch(part("/CUDA%2011.4/f.Ubuntu20_04.deb", content, "libgdrapi.so.2", name="gdrcopy"))
    assert (fetch.into / "ld.conf").read_text() == f"{fetch.into}/gdrcopy/usr/lib\n"
    assert (fetch.into / "gdrcopy/usr/lib/libgdrapi.so.2").read_bytes() == b"library"


def test_a_second_fetch_comes_from_the_cache_and_may_have_the_same_target(mirror: Mirror, fetch: Fetched) -> None:
    mirror.files = {"/a/tool.tar.gz": GZ}
    fetch(part("/a/tool.tar.gz", GZ, "tool"))
    first = everything(fetch.into)
    fetch(part("/a/tool.tar.gz", GZ, "tool"))
    assert mirror.asked == {"/a/tool.tar.gz": 1}
    assert everything(fetch.into) == first


def test_a_cache_that_somebody_changed_is_not_trusted(mirror: Mirror, fetch: Fetched) -> None:
    mirror.files = {"/a/tool.tar.gz": GZ}
    tool = part("/a/tool.tar.gz", GZ, "tool")
    fetch.cache.mkdir()
    (fetch.cache / tool.digest).write_bytes(tar("gz", ("bin/tool", b"something else")))
    fetch(tool)
    assert (fetch.into / "bin" / "tool").read_bytes() == PROGRAM
    assert (fetch.cache / tool.digest).read_bytes() == GZ


def test_another_file_than_the_pinned_one_is_refused_and_leaves_nothing(mirror: Mirror, fetch: Fetched) -> None:
    other = tar("gz", ("bin/tool", b"something else"))
    mirror.files = {"/a/tool.tar.gz": other, "/b/thing.tar.xz": XZ}
    thing = part("/b/thing.tar.xz", XZ, "libthing.so.2", name="thing")
    text = fetch.refused(thing, part("/a/tool.tar.gz", GZ, "tool"))
    assert hashlib.sha256(other).hexdigest() in text
    assert hashlib.sha256(GZ).hexdigest() in text
    assert f"{mirror.address}/a/tool.tar.gz" in text
    assert everything(fetch.into) == []
    assert everything(fetch.cache) == [thing.digest]


def test_every_archive_without_a_digest_is_named_before_anything_is_fetched(mirror: Mirror, fetch: Fetched) -> None:
    mirror.files = {"/a/tool.tar.gz": GZ, "/b/one.tar.gz": GZ, "/b/two.tar.gz": GZ}
    unpinned = [part(f"/b/{name}.tar.gz", None, "tool", name=name) for name in ("one", "two")]
    text = fetch.refused(part("/a/tool.tar.gz", GZ, "tool"), *unpinned)
    assert text.count("has no digest") == text.count("trackbed release pin t") == 2
    assert "[components.one]" in text
    assert "[components.two]" in text
    assert not mirror.asked
    assert everything(fetch.into) == everything(fetch.cache) == []


def test_a_file_that_is_not_there(mirror: Mirror, fetch: Fetched) -> None:
    text = fetch.refused(part("/a/tool.tar.gz", GZ, "tool"))
    assert f"{mirror.address}/a/tool.tar.gz: Tool 1.2 cannot be fetched" in text
    assert "404" in text
    assert "VENDOR_MIRROR" in text
    assert everything(fetch.into) == everything(fetch.cache) == []


def test_a_host_that_does_not_answer(fetch: Fetched, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        port = closed.server_port
    monkeypatch.setenv("VENDOR_MIRROR", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    text = fetch.refused(part("/a/tool.tar.gz", GZ, "tool"))
    assert "refused" in text
    assert "VENDOR=none" in text


def test_a_mirror_that_is_no_address(fetch: Fetched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_MIRROR", "mirror")
    assert "cannot be fetched" in fetch.refused(part("/a/tool.tar.gz", GZ, "tool"))


def test_a_connection_that_breaks_leaves_nothing(mirror: Mirror, fetch: Fetched) -> None:
    mirror.files, mirror.truncated = {"/a/tool.tar.gz": GZ}, {"/a/tool.tar.gz"}
    text = fetch.refused(part("/a/tool.tar.gz", GZ, "tool"))
    assert f"broke after {len(GZ) // 2} of {len(GZ)} bytes" in text
    assert everything(fetch.into) == everything(fetch.cache) == []


@pytest.mark.parametrize("name", ["tool2", "libthing.so.3"])
def test_an_archive_that_lacks_what_it_has_to_provide(mirror: Mirror, fetch: Fetched, name: str) -> None:
    mirror.files = {"/a/tool.tar.gz": GZ}
    text = fetch.refused(part("/a/tool.tar.gz", GZ, "tool", name))
    assert f"Tool 1.2 holds no {name}" in text
    assert "[components.tool]" in text


def test_a_link_that_leads_nowhere_is_not_what_was_asked_for(mirror: Mirror, fetch: Fetched) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo("tool")
        info.type, info.linkname = tarfile.SYMTYPE, "/opt/nowhere/tool"
        archive.addfile(info)
    mirror.files = {"/a/tool.tar.gz": buffer.getvalue()}
    assert "holds no tool" in fetch.refused(part("/a/tool.tar.gz", buffer.getvalue(), "tool"))


def climbing(outside: Path) -> bytes:
    return tar("gz", ("../outside/evil", b"evil"), ("../../outside/evil", b"evil"), ("bin/tool", PROGRAM))


def absolute(outside: Path) -> bytes:
    return tar("gz", (str(outside / "evil"), b"evil"), ("bin/tool", PROGRAM))


def through_a_link(outside: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        link = tarfile.TarInfo("bin")
        link.type, link.linkname = tarfile.SYMTYPE, str(outside)
        archive.addfile(link)
        info = tarfile.TarInfo("bin/evil")
        info.size = 4
        archive.addfile(info, io.BytesIO(b"evil"))
    return buffer.getvalue()


@pytest.mark.parametrize("hostile", [climbing, absolute, through_a_link])
def test_a_hostile_archive_writes_nothing_outside(
    mirror: Mirror, fetch: Fetched, tmp_path: Path, hostile: Callable[[Path], bytes]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    content = hostile(outside)
    mirror.files = {"/a/tool.tar.gz": content}
    try:
        fetch(part("/a/tool.tar.gz", content, "tool"))
    except ReleaseError as error:
        assert "Tool 1.2" in str(error)  # noqa: PT017 - it may be refused as a whole, or unpacked below its folder
    assert everything(outside) == []
    assert not list(tmp_path.rglob("outside/evil")) or "into/tool" in str(next(tmp_path.rglob("outside/evil")))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/a/tool.tar.gz", "cannot be unpacked: "),
        ("/a/tool.deb", "cannot be unpacked: "),
        ("/a/tool.zip", ".zip is none"),
    ],
)
def test_what_cannot_be_unpacked_is_an_error_and_no_traceback(
    mirror: Mirror, fetch: Fetched, path: str, said: str
) -> None:
    mirror.files = {path: b"no archive"}
    assert said in fetch.refused(part(path, b"no archive", "tool"))


def test_a_machine_without_the_program_that_unpacks(
    mirror: Mirror, fetch: Fetched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.files = {"/a/tool.tar.gz": GZ}
    monkeypatch.setenv("PATH", str(tmp_path))
    text = fetch.refused(part("/a/tool.tar.gz", GZ, "tool"))
    assert "'tar'" in text
    assert "install what unpacks it" in text


@pytest.fixture
def unpinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Release, Path]:
    """A release file of its own whose archive has no digest yet."""
    monkeypatch.setattr(vendor, "FOLDER", tmp_path)
    file = tmp_path / "t.toml"
    file.write_text(FILE.format(digest=""), "utf-8")
    return parse(file.read_text("utf-8")), file


def test_pin_writes_the_digest_line_and_nothing_else(mirror: Mirror, unpinned: tuple[Release, Path]) -> None:
    release, file = unpinned
    mirror.files = {"/a/tool.tar.gz": GZ}
    digest = hashlib.sha256(GZ).hexdigest()
    assert vendor.pin(release, lambda line: None) == {"tool": digest}
    assert file.read_text("utf-8") == FILE.format(digest=f'digest = "{digest}"\n')
    assert vendor.pin(parse(file.read_text("utf-8")), lambda line: None) == {}
    assert mirror.asked == {"/a/tool.tar.gz": 1}


def test_half_a_file_is_not_pinned(mirror: Mirror, unpinned: tuple[Release, Path]) -> None:
    release, file = unpinned
    mirror.files, mirror.truncated = {"/a/tool.tar.gz": GZ}, {"/a/tool.tar.gz"}
    with pytest.raises(ReleaseError, match="the connection broke"):
        vendor.pin(release, lambda line: None)
    assert file.read_text("utf-8") == FILE.format(digest="")


def test_a_digest_that_cannot_be_written_is_not_said_to_be(mirror: Mirror, unpinned: tuple[Release, Path]) -> None:
    release, file = unpinned
    mirror.files = {"/other.tar.gz": GZ}
    moved = replace(release.components["tool"], archive=f"{HOST}/other.tar.gz")
    with pytest.raises(ReleaseError, match="no line of its own"):
        vendor.pin(replace(release, components={"tool": moved}), lambda line: None)
    assert file.read_text("utf-8") == FILE.format(digest="")


def test_the_build_sees_an_error_and_an_exit_code(
    mirror: Mirror, unpinned: tuple[Release, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, file = unpinned
    arguments = [str(file), str(tmp_path / "into"), str(tmp_path / "cache")]
    assert vendor.main(arguments) == 2
    assert capsys.readouterr().err.startswith("error: t.toml: [components.tool]: Tool 1.2 has no digest")
    file.write_text(FILE.format(digest=f'digest = "{hashlib.sha256(GZ).hexdigest()}"\n'), "utf-8")
    mirror.files = {"/a/tool.tar.gz": GZ}
    assert vendor.main(arguments) == 0
    assert (tmp_path / "into" / "bin" / "tool").exists()
