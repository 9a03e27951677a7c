"""data.dali-*: DALI on the CPU: its package, its pixels against PIL and NumPy, its order, and its bad files."""

from __future__ import annotations

import importlib.util
import io
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from trackbed.validate import LEVELS, Check, Context, Outcome, number, unreadable
from trackbed.validate.data.images import scan_images

# Both decode with libjpeg-turbo: the same bits. Resizing rounds at other places: up to 2 of 255 levels at an edge.
# Normalising is float arithmetic on the same pixels: a few units in the last place.
DECODE, RESIZE, NORMALISE = 0, 2, 1e-5
WIDTH, HEIGHT, CROP_WIDTH, CROP_HEIGHT = 80, 60, 64, 48
MEAN, STD = (120.0, 110.0, 100.0), (60.0, 50.0, 40.0)


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Largest absolute difference from the reference after each step; levels of 255, then normalised units."""

    decode: float
    resize: float
    normalise: float


def measure_dali(context: Context) -> Differences:
    """Decode, resize, then crop, mirror and normalise one JPEG made here."""
    import numpy as np
    from PIL import Image

    encoded = _jpeg()
    decoded, resized, normalised = _pipeline(encoded)
    picture = Image.open(io.BytesIO(encoded)).convert("RGB")
    small = picture.resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)
    return Differences(
        decode=_largest(np.asarray(picture), decoded),
        resize=_largest(np.asarray(small), resized),
        normalise=_largest(_normalise(resized), normalised),
    )


def judge_dali(differences: Differences) -> Outcome:
    """Each step may differ from its reference by its own tolerance, and no more."""
    steps = {"decode": DECODE, "resize": RESIZE, "normalise": NORMALISE}
    found = {step: number(getattr(differences, step, None)) for step in steps}
    known = {step: value for step, value in found.items() if value is not None}
    if len(known) < len(steps):
        return unreadable("the difference from the reference", differences)
    # Not `value > limit`: NaN must fail.
    bad = [step for step, value in known.items() if not value <= steps[step]]
    observed = "off by " + ", ".join(f"{step} {value:.2g}" for step, value in known.items())
    expected = ", ".join(f"{step} <= {limit:g}" for step, limit in steps.items())
    if not bad:
        return Outcome(status="pass", observed=observed, expected=expected)
    remedy = f"DALI's {' and '.join(bad)} is wrong here: make setup, and report this with the output of --json"
    return Outcome(status="fail", observed=observed, expected=expected, remedy=remedy)


def _jpeg() -> bytes:
    """A picture with slopes in three directions, so that a swapped axis or channel shows."""
    import numpy as np
    from PIL import Image

    y, x = np.mgrid[0 : 2 * HEIGHT, 0 : 2 * WIDTH]
    channels = [x * 255 // (2 * WIDTH), y * 255 // (2 * HEIGHT), (x + y) * 255 // (2 * WIDTH + 2 * HEIGHT)]
    buffer = io.BytesIO()
    Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def _pipeline(encoded: bytes) -> list[Any]:
    """The three steps' outputs; `device_id=None` builds a pipeline that needs no GPU."""
    import numpy as np
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
    def steps() -> tuple[Any, ...]:
        file = fn.external_source(source=lambda: [np.frombuffer(encoded, np.uint8)], dtype=types.UINT8, ndim=1)
        decoded = fn.decoders.image(file, device="cpu", output_type=types.RGB)
        resized = fn.resize(
            decoded, resize_x=WIDTH, resize_y=HEIGHT, interp_type=types.INTERP_LINEAR, antialias=True
        )  # fmt: skip
        normalised = fn.crop_mirror_normalize(
            resized, crop=(CROP_HEIGHT, CROP_WIDTH), mirror=1, mean=MEAN, std=STD, output_layout="CHW",
            dtype=types.FLOAT,
        )  # fmt: skip
        return decoded, resized, normalised

    pipeline = steps()
    # Newer DALI does it by itself.
    pipeline.build()
    return [np.array(output.at(0)) for output in pipeline.run()]


def _normalise(pixels: Any) -> Any:
    """NumPy's crop of the middle, mirror, normalise, channels first."""
    import numpy as np

    top, left = (HEIGHT - CROP_HEIGHT) // 2, (WIDTH - CROP_WIDTH) // 2
    cropped = pixels[top : top + CROP_HEIGHT, left : left + CROP_WIDTH][:, ::-1].astype(np.float32)
    return ((cropped - np.array(MEAN, np.float32)) / np.array(STD, np.float32)).transpose(2, 0, 1)


def _largest(wanted: Any, found: Any) -> float:
    """The largest difference; infinite when the shapes differ."""
    import numpy as np

    if wanted.shape != found.shape:
        return float("inf")
    return float(np.abs(wanted.astype(np.float64) - found.astype(np.float64)).max())


def measure_package(context: Context) -> dict[str, Any]:
    """The installed DALI packages' CUDA digits, and torch's CUDA version: None for a CPU build, "" for no torch.

    Neither is imported: a pair that does not fit may crash.
    """
    names = (str(package.metadata["Name"] or "").lower() for package in metadata.distributions())
    found = (re.fullmatch(r"nvidia[-_]dali[-_]cuda(\d+)", name) for name in names)
    return {"dali": sorted({match[1] for match in found if match}), "torch": torch_cuda()}


def torch_cuda() -> str | None:
    """The CUDA version in torch's own version file."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return ""
    match = re.search(
        r"^cuda\b.*= '([\d.]+)'", Path(spec.origin).with_name("version.py").read_text("utf-8"), re.MULTILINE
    )
    return match[1] if match else None


def judge_package(measured: object) -> Outcome:
    """Two packages write over each other's files; another CUDA than torch's means two of each library in a process."""
    found = measured if isinstance(measured, Mapping) else {}
    digits, cuda = found.get("dali"), found.get("torch", "")
    if not isinstance(digits, list) or any(not re.fullmatch(r"\d{2,}", str(each)) for each in digits) or cuda == "":
        return unreadable("DALI's package and torch's CUDA", measured)
    if cuda is not None and not re.fullmatch(r"\d+(\.\d+)*", str(cuda)):
        return unreadable("torch's CUDA", cuda)
    names = ", ".join(f"nvidia-dali-cuda{each}" for each in digits)
    expected = "one nvidia-dali-cudaNNN, of the CUDA that torch was built with"
    mend = "make setup; or: uv pip uninstall the other, then install the release's pin"
    if len(digits) != 1:
        observed = f"{len(digits)} DALI packages: {names or 'none'}"
        return Outcome(status="fail", observed=observed, expected=expected, remedy=mend)
    if cuda is None:
        return Outcome(
            status="pass", observed=f"{names}; torch is a CPU build, so no CUDA is shared", expected=expected
        )
    major = str(cuda).partition(".")[0]
    same = digits[0][:-1] == major
    observed = f"{names}, torch for CUDA {cuda}"
    remedy = "" if same else f"{mend}: nvidia-dali-cuda{major}0"
    return Outcome(status="pass" if same else "fail", observed=observed, expected=expected, remedy=remedy)


def measure_bad_images(context: Context) -> dict[str, Any]:
    """One good image and three bad ones: what our scan names, and how DALI ends on each bad one alone."""
    good = _jpeg()
    bad = {"truncated.jpg": good[: len(good) // 2], "garbage.jpg": b"<html>404</html>" * 9, "empty.jpg": b""}
    with tempfile.TemporaryDirectory(prefix="trackbed-") as folder:
        for name, content in {"good.jpg": good, **bad}.items():
            Path(folder, name).write_bytes(content)
        named = [Path(fault.file).name for fault in scan_images(Path(folder)).faults]
        said = {name: _dali_says(Path(folder, name)) for name in bad}
    return {"bad": sorted(bad), "named": sorted(named), "dali": said}


def judge_bad_images(measured: object) -> Outcome:
    """The scan must name every bad file and no good one: DALI itself ends the epoch and names only some."""
    found = measured if isinstance(measured, Mapping) else {}
    bad, named, said = (found.get(name) for name in ("bad", "named", "dali"))
    if not isinstance(bad, list) or not bad or not isinstance(named, list) or not isinstance(said, Mapping):
        return unreadable("what the scan of images named", measured)
    by_dali = [name for name, text in said.items() if name in str(text)]
    evidence = "; ".join(f"{name}: {text}" for name, text in said.items())
    expected = f"{', '.join(bad)} named, and nothing else"
    if sorted(named) == sorted(bad):
        observed = f"the scan names {len(named)} of {len(bad)} bad images; DALI itself names {len(by_dali)}"
        return Outcome(status="pass", observed=observed, expected=expected, evidence=evidence)
    return Outcome(
        status="fail",
        observed=f"the scan names {', '.join(map(str, named)) or 'none'}",
        expected=expected,
        evidence=evidence,
        remedy="this Pillow decodes what is broken, or not what is good: make setup, and look at stack.drift",
    )


def _dali_says(path: Path) -> str:
    """What DALI raises on that file; empty when it decodes it."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
    def decode() -> Any:
        encoded, _ = fn.readers.file(files=[str(path)])
        return fn.decoders.image(encoded, device="cpu", output_type=types.RGB)

    try:
        pipeline = decode()
        pipeline.build()
        pipeline.run()
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return " ".join(lines)[:400]
    return ""


CHECKS = (
    Check(
        id="data.dali-package",
        title="DALI's package against torch's CUDA",
        measure=measure_package,
        judge=judge_package,
        deadline=20,
        child="host",
        proof="mixed",
        why="`libcudart.so.12: cannot open shared object file`, or `undefined symbol` from whichever library came "
        "second; two DALI packages share one folder and overwrite each other.",
        rule="Fails when there is not exactly one nvidia-dali-cudaNNN, and when its CUDA major is not torch's.",
    ),
    Check(
        id="data.dali-decode",
        title="DALI against PIL and NumPy",
        measure=measure_dali,
        judge=judge_dali,
        deadline=60,
        levels=LEVELS,
        child="dali",
        why="No error: pixels that are mirrored, of swapped channels or resized by another filter train badly.",
        rule="Fails when decoding differs from PIL at all, resizing by more than 2 of 255, normalising by over 1e-5.",
    ),
    Check(
        id="data.dali-bad-images",
        title="bad images are named",
        measure=measure_bad_images,
        judge=judge_bad_images,
        deadline=60,
        child="dali",
        levels=("job", "deep"),
        why="`nvImageCodec failure: '#4'`: DALI gives the number of a sample in a batch, not the file, and `Current "
        "pipeline object is no longer valid.`",
        rule="Fails when the scan of data.images misses a truncated, a garbage or an empty JPEG, or names a good one.",
    ),
)
