"""data.*: a DALI pipeline on the CPU, held against PIL and NumPy."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from trackbed.validate import Check, Context, Outcome, number, unreadable

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


CHECKS = (
    Check(
        id="data.dali-decode",
        title="DALI against PIL and NumPy",
        measure=measure_dali,
        judge=judge_dali,
        deadline=60,
    ),
)
