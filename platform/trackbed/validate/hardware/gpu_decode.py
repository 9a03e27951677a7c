"""One JPEG decoded by DALI on the CPU and by the GPU (`mixed`), and whether the video decoder's library loads."""

from __future__ import annotations

import ctypes
from typing import Any

from trackbed.validate.data.dali import _jpeg, _largest


def difference(*, video: bool) -> dict[str, Any]:
    """The largest difference of a pixel, in steps of 255, and why libnvcuvid does not load where it is wanted."""
    encoded = _jpeg()
    return {
        "largest": _largest(decode(encoded, "cpu"), decode(encoded, "mixed")),
        "video_error": load_error("libnvcuvid.so.1") if video else "",
    }


def decode(encoded: bytes, device: str) -> Any:
    """The picture's pixels as DALI gives them; `cpu` needs no GPU."""
    import numpy as np
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=1, num_threads=1, device_id=None if device == "cpu" else 0)  # type: ignore[untyped-decorator]
    def steps() -> Any:
        file = fn.external_source(source=lambda: [np.frombuffer(encoded, np.uint8)], dtype=types.UINT8, ndim=1)
        return fn.decoders.image(file, device=device, output_type=types.RGB)

    pipeline = steps()
    pipeline.build()
    (output,) = pipeline.run()
    return np.array((output if device == "cpu" else output.as_cpu()).at(0))


def load_error(library: str) -> str:
    """Why a library does not load; empty when it does."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return ""
