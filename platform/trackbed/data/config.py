"""What a job says about its data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class DataConfig(BaseModel):
    """The `data` section of a job."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    train: Annotated[str, Field(description="JSONL file of conversations, or SET:PART of a built set, as pydocs:train")]
    heldout: Annotated[str, Field(description="the same, for conversations that are never trained on")]
    max_length: Annotated[int, Field(ge=8, description="longest sample, in tokens")] = 512
    too_long: Annotated[
        Literal["drop", "truncate_left", "fail"], Field(description="what is done with a longer sample")
    ] = "drop"
    pack: Annotated[bool, Field(description="put several short samples into one row, without attention across")] = True
    row_length: Annotated[int, Field(ge=8, description="tokens in a packed row; at least max_length")] = 512
    seed: Annotated[int, Field(ge=0, description="order of the samples")] = 0
