"""What every data pipeline keeps, whatever it loads.

- It is an endless iterator of steps for one global rank; all ranks take equally many.
- The order is a pure function of (data, seed): not of workers, not of time, not of what was read before.
- `state()` after step n, given to `restore()` of a new pipeline, continues with step n + 1, bit for bit.
- No sample of an epoch is lost or given twice, over all ranks together.
- A sample that cannot be read is handled by policy and named (`trackbed.data.samples.corrupt`).
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, runtime_checkable

from trackbed.errors import DataError, Problem

State = dict[str, Any]
StepT = TypeVar("StepT", covariant=True)


@runtime_checkable
class Pipeline(Protocol[StepT]):
    """One rank's stream of steps."""

    def __next__(self) -> StepT: ...

    def state(self) -> State:
        """What `restore` needs, in JSON values: {"step": steps given so far, "data": digest of what is ordered}."""
        ...

    def restore(self, state: State) -> None:
        """Continue after the step that the state was taken at. DataError when it is of other data or settings."""
        ...

    def close(self) -> None:
        """Give back threads and memory; safe to call twice."""
        ...


def agreed_step(state: State, digest: str) -> int:
    """The step of a state, when it is of this data; DataError otherwise: another order would lose samples silently."""
    if state.get("data") != digest:
        raise DataError(
            Problem(
                id="data.other-data",
                what="the checkpoint was made with other data, another seed or another order",
                wanted=f"data {str(state.get('data'))[:12]}, this is {digest[:12]}",
                remedy="resume with the data and the data settings of the run, or start a new run",
            )
        )
    return int(state["step"])
