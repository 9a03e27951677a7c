"""data.jsonl, data.images: the scans as checks, for the data that is named to them.

`expect["data"]` is a path or a list of them; else TRACKBED_CHECK_DATA, paths with colons between. Without, both skip.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from trackbed.validate import Check, Context, Level
from trackbed.validate.data.images import files_of as image_files
from trackbed.validate.data.images import scan_images
from trackbed.validate.data.jsonl import files_of as jsonl_files
from trackbed.validate.data.jsonl import scan_jsonl
from trackbed.validate.data.scan import Scan, judge

VARIABLE = "TRACKBED_CHECK_DATA"
# Seconds each scan may take; what it did not reach is said. A node's start has ten seconds for everything.
BUDGET: dict[Level, float] = {"image": 2, "node": 3, "job": 20, "deep": 3000}


def paths(context: Context) -> list[Path]:
    """The data to look at; empty when none is named."""
    named = context.expect.get("data") or os.environ.get(VARIABLE, "").split(os.pathsep)
    return [Path(str(each)) for each in ([named] if isinstance(named, str) else named) if each]


def measure_jsonl(context: Context) -> Scan:
    """Every line of every JSONL file that is named; a path that is not there is a fault here, and only here."""
    return _all(context, "lines", scan_jsonl, _has_lines)


def measure_images(context: Context) -> Scan:
    """Every image that is named."""
    return _all(context, "images", scan_images, lambda path: bool(image_files(path)))


def _has_lines(path: Path) -> bool:
    return bool(jsonl_files(path)) and not (path.is_file() and image_files(path))


def _all(context: Context, of: str, scan: Callable[..., Scan], has: Callable[[Path], bool]) -> Scan:
    """One scan over all paths. A folder with neither lines nor images is nobody's, which both say."""
    named = paths(context)
    whole = Scan(path=Path(os.pathsep.join(map(str, named))), of=of)
    chosen = [path for path in named if has(path)]
    if not chosen:
        where = ", ".join(map(str, named))
        whole.missing = f"there are no {of} in {where}" if named else "no data is named"
    until = time.monotonic() + BUDGET[context.level]
    for path in chosen:
        part = scan(path, until=until)
        for fault in part.faults:
            whole.faults.append(fault)
        whole.totals += part.totals
        whole.files, whole.items, whole.bytes = (
            whole.files + part.files, whole.items + part.items, whole.bytes + part.bytes,
        )  # fmt: skip
        whole.complete = whole.complete and part.complete
    return whole


CHECKS = (
    Check(
        id="data.jsonl",
        title="every line of the named JSONL",
        measure=measure_jsonl,
        judge=judge,
        deadline=3600,
        child="data-scan",
        why="`JSON parse error: Missing a comma or '}' in row 5` counts rows from a block's start, bad UTF-8 is a "
        'UnicodeDecodeError without a line, and `{"text": 3}` among strings loads without a word.',
        rule="Fails on a line that is not UTF-8, not JSON, not an object, cut off, over 16 MiB or of another type than "
        "the others, on a byte-order mark and on an empty file; warns on empty lines. Skipped when no data is named.",
    ),
    Check(
        id="data.images",
        title="every image of the named data",
        measure=measure_images,
        judge=judge,
        deadline=3600,
        child="data-scan",
        why="DALI ends with `nvImageCodec failure: '#4'` on a garbage file and names none; its pipeline is no longer "
        "valid afterwards, so one bad file ends the epoch.",
        rule="Fails on an image of 0 bytes, of no known format, that does not decode to its end, or with over 89 "
        "million pixels, and on a shard that breaks off; warns on CMYK and on a name that says another format. "
        "Skipped when no data is named.",
    ),
)
