"""Watching: the names of what a run measures, where they are written, and TensorBoard over every run."""

LOSS = "train/loss"
LEARNING_RATE = "train/learning_rate"
GRADIENT_NORM = "train/gradient_norm"
HELD_OUT_LOSS = "heldout/loss"
DATA_WAIT = "speed/data_wait_share"
STEP_SECONDS = "speed/step_seconds"
MEMORY = "memory/peak_gib_per_rank"


def held_out(measure: str) -> str:
    """The name of a held-out measure, such as exact match."""
    return f"heldout/{measure.replace(' ', '_')}"


def speed(unit: str) -> str:
    """The name of a speed, such as of tokens."""
    return f"speed/{unit}_per_second"
