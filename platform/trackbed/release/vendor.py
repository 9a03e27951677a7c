"""NVIDIA's archives: GDRCopy, TensorRT, Nsight. Fetched by pinned version, verified by digest, unpacked, found.

`python -m trackbed.release.vendor 26.11 /opt/vendor` is how the image's build uses it, with nothing but Python's own
library. `$VENDOR_MIRROR` takes the place of the scheme and host of every address.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from trackbed.errors import Problem, ReleaseError
from trackbed.release import FOLDER, Component, Release, load

Say = Callable[[str], None]
# tar cannot see how a file without a telling name is compressed.
COMPRESSED = {".gz": "gzip", ".tgz": "gzip", ".xz": "xz", ".zst": "zstd"}


def fetch(release: Release, into: Path, cache: Path, say: Say) -> None:
    """Unpack every archive under `into`/NAME; programs are linked into `into`/bin, library folders into ld.conf.

    Raises ReleaseError, before anything is unpacked, when an archive has no digest, has another, or cannot be had.
    """
    parts = [part for part in release.components.values() if part.archive]
    unpinned = [part for part in parts if not part.digest]
    if unpinned:
        raise ReleaseError([_no_digest(release, part) for part in unpinned])
    files = {part: _cached(part, cache, say) for part in parts}
    (into / "bin").mkdir(parents=True, exist_ok=True)
    libraries = [folder for part, file in files.items() for folder in _install(part, file, into)]
    (into / "ld.conf").write_text("".join(f"{folder}\n" for folder in libraries), "utf-8")


def pin(release: Release, say: Say) -> dict[str, str]:
    """Fetch every archive that has no digest yet and write its digest into the release file: the diff is for review."""
    parts = [part for part in release.components.values() if part.archive and not part.digest]
    with tempfile.TemporaryDirectory() as folder:
        digests = {part.name: _digest(_download(part, Path(folder) / part.name, say)) for part in parts}
    path = FOLDER / f"{release.name}.toml"
    path.write_text(_with_digests(path, parts, digests), "utf-8")
    return digests


def _with_digests(path: Path, parts: list[Component], digests: dict[str, str]) -> str:
    text = path.read_text("utf-8")
    for part in parts:
        line = f'archive = "{part.archive}"\n'
        if line not in text:
            where, what = f"{path.name}: [components.{part.name}]", "its archive has no line of its own to pin below"
            raise ReleaseError(Problem(id="release.pin", where=where, what=what, wanted=line.strip()))
        text = text.replace(line, f'{line}digest = "{digests[part.name]}"\n', 1)
    return text


def _no_digest(release: Release, part: Component) -> Problem:
    return Problem(
        id="release.no-digest",
        where=f"{release.name}.toml: [components.{part.name}]",
        what=f"{part.title} {part.version} has no digest, so nothing could tell it from another file",
        remedy=f"trackbed release pin {release.name}, where its host can be reached; then review the diff",
    )


def _cached(part: Component, cache: Path, say: Say) -> Path:
    """The verified file, kept under its digest: a build that failed later does not fetch it again.

    What is in the cache is verified too: a cache outlives builds, and others may write there.
    """
    file = cache / part.digest
    if not file.exists() or _digest(file) != part.digest:
        cache.mkdir(parents=True, exist_ok=True)
        new = _download(part, file.with_suffix(".part"), say)
        if (found := _digest(new)) != part.digest:
            new.unlink()
            raise ReleaseError(_other_file(part, found))
        new.replace(file)
    return file


def _other_file(part: Component, found: str) -> Problem:
    return Problem(
        id="release.digest",
        where=address(part),
        what=f"{part.title} {part.version} is not the file that was pinned: its SHA-256 is {found}",
        wanted=part.digest,
        remedy="fetch it again, or from another mirror; if its publisher replaced it, review that and pin it anew",
    )


def _download(part: Component, target: Path, say: Say) -> Path:
    say(f"fetching {part.title} {part.version}")
    try:
        with urllib.request.urlopen(address(part), timeout=60) as answer, target.open("wb") as file:
            while chunk := answer.read(1 << 20):
                file.write(chunk)
            _whole(file.tell(), answer.headers.get("Content-Length"))
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        target.unlink(missing_ok=True)
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        remedy = "set VENDOR_MIRROR to a host that has it, or build with VENDOR=none"
        what = f"{part.title} {part.version} cannot be fetched: {error}"
        raise ReleaseError(Problem(id="release.fetch", where=address(part), what=what, remedy=remedy)) from error
    return target


def _whole(got: int, length: str | None) -> None:
    """Python's client ends in silence where a connection breaks: a digest of half a file would be pinned."""
    if length and got != int(length):
        raise ValueError(f"the connection broke after {got} of {length} bytes")


def address(part: Component) -> str:
    """Where an archive is fetched from: the pinned address, on `$VENDOR_MIRROR` when that is set."""
    mirror = os.environ.get("VENDOR_MIRROR", "")
    if not mirror:
        return part.archive
    return mirror.rstrip("/") + urlunsplit(("", "", *urlsplit(part.archive)[2:]))


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as reader:
        while chunk := reader.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _install(part: Component, file: Path, into: Path) -> set[Path]:
    """Unpack one archive; returns the folders of the libraries it has to provide."""
    folder = into / part.name
    folder.mkdir(parents=True, exist_ok=True)
    _unpack(part, file, folder)
    libraries: set[Path] = set()
    for name in part.provides:
        found = _find(part, name, folder)
        if re.search(r"\.so(\.|$)", name):
            libraries.add(found.parent)
        else:
            link = into / "bin" / name
            link.unlink(missing_ok=True)
            link.symlink_to(found)
    return libraries


def _unpack(part: Component, file: Path, folder: Path) -> None:
    """Both programs refuse what would be written outside the folder."""
    tar = ["tar", "--no-same-owner", "-xf", str(file), "-C", str(folder)]
    suffix = Path(part.archive).suffix
    ways = {how: [*tar, f"--{program}"] for how, program in COMPRESSED.items()}
    command = {".deb": ["dpkg-deb", "-x", str(file), str(folder)], **ways}.get(suffix)
    if command is None:
        raise ReleaseError(_not_unpacked(part, f"{suffix or 'no suffix'} is none of {', '.join(['.deb', *ways])}"))
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, errors="replace")
    except subprocess.CalledProcessError as error:
        raise ReleaseError(_not_unpacked(part, (error.stderr.strip().splitlines() or ["no reason"])[0])) from error
    except OSError as error:
        raise ReleaseError(_not_unpacked(part, str(error))) from error
    # No file of an image makes its user another one, and none is for everybody to write.
    subprocess.run(["chmod", "-R", "a-s,o-w", str(folder)], check=True)


def _not_unpacked(part: Component, why: str) -> Problem:
    remedy = "install what unpacks it (tar, xz, zstd, dpkg-deb); an archive that is broken itself needs another pin"
    what = f"{part.title} {part.version} cannot be unpacked: {why}"
    return Problem(id="release.unpack", where=part.archive, what=what, remedy=remedy)


def _find(part: Component, name: str, folder: Path) -> Path:
    """What the archive has to hold. The shortest path of that name: what lies deeper is for other systems."""
    found = sorted((path for path in folder.rglob(name) if path.is_file()), key=lambda path: (len(path.parts), path))
    if not found:
        what, remedy = f"{part.title} {part.version} holds no {name}", f"mend `provides` of [components.{part.name}]"
        raise ReleaseError(Problem(id="release.provides", where=part.archive, what=what, remedy=remedy))
    return found[0]


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main(arguments: list[str]) -> int:
    """For the image's build, where no package is installed yet."""
    name, into, cache = arguments
    try:
        fetch(load(name), Path(into), Path(cache), _say)
    except ReleaseError as error:
        sys.stderr.write("".join(f"error: {problem}\n" for problem in error.problems))
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
