"""Whether the folder for runs is one folder for all nodes, and whether its clock is the nodes' own."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

# A network file system may show a new name only after its cache has aged.
LIMIT = 30.0
POLL_SECONDS = 0.1


class Folder:
    """Node 0 writes a file, the others look for it while other things are checked, and answer with a file each."""

    def __init__(self, rank: int, runs: Path) -> None:
        self._rank, self._runs = rank, runs.absolute()
        self._work = self._runs
        self._made: list[Path] = []
        self._said: dict[str, Any] = {}
        self._limit = LIMIT
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Node 0 takes away what it has made; it is the only one that makes a folder."""
        if self._rank == 0 and self._work != self._runs:
            shutil.rmtree(self._work, ignore_errors=True)
        for path in self._made:
            with suppress(OSError):
                path.rmdir()

    def look(self, first: Mapping[str, Any], limit: float = LIMIT) -> None:
        """Begin, by what node 0 has said; without a token the folder is not meant to be shared.

        `limit` is how many seconds there are for node 0's file to be seen.
        """
        if not first["token"]:
            return
        self._limit = limit
        self._work = self._runs / f".trackbed-validate-job-{first['token']}"
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def seen(self) -> dict[str, Any]:
        """Seconds until node 0's file was seen here (None: not in time), this folder's clock against this node's."""
        if self._thread:
            self._thread.join(self._limit + 1)
        said = dict(self._said)
        return {"folder": str(self._runs), **(said or {"seen": None, "error": "the file system does not answer"})}

    def returned(self, rank: int) -> dict[str, bool]:
        """Whether node 0 sees that node's file."""
        end = time.monotonic() + 1
        while not (there := self._file(rank).exists()) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        return {"seen": there}

    def _look(self) -> None:
        try:
            self._said = self._first() if self._rank == 0 else self._other()
        except OSError as error:
            self._said = {"seen": None, "error": errno.errorcode.get(error.errno or 0, str(error))}

    def _first(self) -> dict[str, Any]:
        self._made = [path for path in (self._runs, *self._runs.parents) if not path.exists()]
        self._work.mkdir(parents=True)
        return {"seen": 0.0, "skew": self._write()}

    def _other(self) -> dict[str, Any]:
        started = time.monotonic()
        while time.monotonic() - started <= self._limit:
            # Listing asks a network file system anew, where a look at one name may be answered from its cache.
            with suppress(OSError):
                if self._file(0).name in os.listdir(self._work):
                    return {"seen": time.monotonic() - started, "skew": self._write()}
            time.sleep(POLL_SECONDS)
        return {"seen": None}

    def _file(self, rank: int) -> Path:
        return self._work / f"node-{rank}"

    def _write(self) -> float:
        """Write this node's file; seconds that its time is ahead of this node's clock."""
        path = self._file(self._rank)
        path.write_text(str(os.getpid()), "utf-8")
        return path.stat().st_mtime - time.time()
