"""data.dali-order: the same seed gives the same samples, ranks share them exactly, and a restored pipeline goes on."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trackbed.validate import Check, Context, Outcome, unreadable

SAMPLES = 23  # a prime: no number of ranks divides it
WORLDS = (1, 2, 3)
STEPS, CUT = 12, 5


def measure(context: Context) -> dict[str, Any]:
    """Streams of sample numbers (and of a random number each) from DALI's own file reader, shuffled."""
    with tempfile.TemporaryDirectory(prefix="trackbed-") as folder:
        files = [str(Path(folder, f"{index}.bin")) for index in range(SAMPLES)]
        for file in files:
            Path(file).write_bytes(b"x")
        first, again = (_stream(_pipeline(files, seed=5), STEPS) for _ in range(2))
        return {
            "same_seed": first == again,
            "other_seed": first == _stream(_pipeline(files, seed=6), STEPS),
            "shards": {world: _shared(files, world) for world in WORLDS},
            "restored": _restored(files),
        }


def judge(measured: object) -> Outcome:
    """A seed that changes nothing is as bad as one that does not hold."""
    found = measured if isinstance(measured, Mapping) else {}
    shards, restored = found.get("shards"), found.get("restored", 0)
    known = all(isinstance(found.get(name), bool) for name in ("same_seed", "other_seed"))
    if not known or not isinstance(shards, Mapping) or not shards or restored not in (True, False, None):
        return unreadable("DALI's streams", measured)
    if any(not isinstance(numbers, Sequence) for numbers in shards.values()):
        return unreadable("DALI's shards", shards)
    wrong = [] if found["same_seed"] else ["the same seed gives another order"]
    wrong += ["another seed gives the same order"] if found["other_seed"] else []
    wrong += [text for world, numbers in shards.items() if (text := _unfair(world, list(numbers)))]
    wrong += ["a restored pipeline goes on with other samples"] if restored is False else []
    expected = f"seeds hold, {', '.join(map(str, shards))} ranks see each sample once, a restored pipeline goes on"
    if wrong:
        remedy = (
            "make setup (stack.drift says which DALI is loaded); until then do not resume in the middle of an epoch"
        )
        return Outcome(status="fail", observed="; ".join(wrong), expected=expected, remedy=remedy)
    more = "a restored pipeline goes on" if restored else "this DALI has no checkpoints to restore"
    return Outcome(status="pass", observed=f"seeds hold, shards are exact, {more}", expected=expected)


def _unfair(world: Any, numbers: list[Any]) -> str:
    lost, twice = set(range(SAMPLES)) - set(numbers), len(numbers) - len(set(numbers))
    return f"{world} ranks lose {len(lost)} samples and see {twice} twice" if lost or twice else ""


def _shared(files: list[str], world: int) -> list[int]:
    """What all ranks of a world see in their first epoch, one rank after the other."""
    seen: list[int] = []
    for rank in range(world):
        size = len(files) * (rank + 1) // world - len(files) * rank // world
        pipeline = _pipeline(files, seed=5, batch=1, shard=rank, shards=world)
        seen += [number for numbers, _ in _stream(pipeline, size) for number in numbers]
    return seen


def _restored(files: list[str]) -> bool | None:
    """Whether a pipeline restored in the middle of an epoch gives the rest of the stream; None where DALI cannot."""
    try:
        whole = _pipeline(files, seed=5, enable_checkpointing=True)
    except TypeError:
        return None
    _stream(whole, CUT)
    kept = whole.checkpoint()
    rest = _stream(whole, STEPS - CUT)
    return rest == _stream(_pipeline(files, seed=5, enable_checkpointing=True, checkpoint=kept), STEPS - CUT)


def _pipeline(files: list[str], *, seed: int, batch: int = 4, shard: int = 0, shards: int = 1, **more: Any) -> Any:
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=batch, num_threads=1, device_id=None, seed=seed, **more)  # type: ignore[untyped-decorator]
    def steps() -> tuple[Any, ...]:
        _, label = fn.readers.file(
            files=files, labels=list(range(len(files))), random_shuffle=True, initial_fill=8, shard_id=shard,
            num_shards=shards, name="reader",
        )  # fmt: skip
        return label, fn.random.uniform(range=[0.0, 1.0])

    pipeline = steps()
    pipeline.build()
    return pipeline


def _stream(pipeline: Any, steps: int) -> list[tuple[list[int], list[float]]]:
    outputs = (pipeline.run() for _ in range(steps))
    return [(_flat(labels), _flat(values)) for labels, values in outputs]


def _flat(output: Any) -> list[Any]:
    import numpy as np

    return [value for index in range(len(output)) for value in np.array(output.at(index)).ravel().tolist()]


CHECKS = (
    Check(
        id="data.dali-order",
        title="DALI's order, shards and restart",
        measure=measure,
        judge=judge,
        deadline=60,
        child="dali",
        why="No error: ranks that see some samples twice and others never, and a resumed run that sees its epoch's "
        "first half again.",
        rule="Fails when a seed does not hold or does nothing, when 1, 2 or 3 ranks do not see every sample once, and "
        "when a restored pipeline does not go on where it was.",
    ),
)
