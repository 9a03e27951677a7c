"""A runner that nothing can break, and its records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import validate_fakes
from trackbed.validate import Context, Outcome, Result, result, runner
from trackbed.validate.catalogue import CHECKS
from trackbed.validate.stack import monitor
from validate_rules import alive, check

FAKES = "validate_fakes"


@pytest.fixture(scope="module")
def misbehaved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Result], Path]]:
    folder = tmp_path_factory.mktemp("fakes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        yield {done.id: done for done in runner.stream(Context(output=folder, ranks=5), FAKES)}, folder


def test_a_check_that_hangs_is_an_error_and_what_it_started_is_ended(
    misbehaved: tuple[dict[str, Result], Path],
) -> None:
    results, folder = misbehaved
    assert results["fake.hang"].status == "error"
    assert results["fake.hang"].observed == "no answer within 1 s"
    assert "in hang" in results["fake.hang"].evidence
    assert not alive(int((folder / "stray").read_text("utf-8")))


def test_a_check_that_crashes_is_an_error_with_its_signal(misbehaved: tuple[dict[str, Result], Path]) -> None:
    crash = misbehaved[0]["fake.crash"]
    assert crash.status == "error"
    assert "SIGSEGV" in crash.observed
    assert "in crash" in crash.evidence
    assert crash.remedy


def test_the_checks_after_a_bad_one_still_run(misbehaved: tuple[dict[str, Result], Path]) -> None:
    results, _ = misbehaved
    assert len(results) == len(validate_fakes.CHECKS)
    assert (results["fake.first"].status, results["fake.after"].status) == ("pass", "pass")
    assert results["fake.after"].observed == "5"


def test_what_a_check_raises_is_told_apart(misbehaved: tuple[dict[str, Result], Path]) -> None:
    results, _ = misbehaved
    assert (results["fake.value"].status, results["fake.value"].observed) == ("error", "ValueError: bad value")
    assert (results["fake.missing"].status, results["fake.missing"].remedy) == ("fail", "make setup")
    full = results["fake.full"]
    assert (full.status, full.remedy) == ("skip", "do what container.temporary-folder says")
    ours = results["fake.ours"]
    assert (ours.status, ours.observed, ours.remedy) == ("fail", "there is no release 9", "pick one")


def test_a_caller_that_stops_leaves_nothing_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    before = set(psutil.Process().children(recursive=True))
    results = runner.stream(Context(output=tmp_path), FAKES, only={"fake.first", "fake.hang"})
    assert next(results).id == "fake.first"
    results.close()  # type: ignore[attr-defined]
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize(
    ("statuses", "strict", "code"),
    [
        (["pass", "skip"], True, 0),
        (["pass", "warn"], False, 0),
        (["pass", "warn"], True, 1),
        (["warn", "fail"], True, 2),
        (["fail", "error"], False, 3),
        ([], False, 3),
    ],
)
def test_exit_codes(statuses: list[Any], strict: bool, code: int) -> None:
    assert runner.exit_code([made(status) for status in statuses], strict=strict) == code


# --- records ---


def made(status: Any, name: str = "host.cpus", **changes: str) -> Result:
    fields = {"observed": "seen", "expected": "wanted thing", "remedy": "mend thing", **changes}
    return result(check(name), Outcome(status=status, **fields), host="h", duration_ms=3)


def test_a_result_survives_json() -> None:
    done = made("warn", evidence="“quoted”\n")
    assert Result.from_dict(json.loads(json.dumps(done.to_dict()))) == done


@pytest.mark.parametrize("change", [{"status": "good"}, {"schema_version": 2}, {"surprise": 1}])
def test_a_record_of_another_shape_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a result"):
        Result.from_dict({**made("pass").to_dict(), **change})


def test_a_record_with_a_field_missing_is_refused() -> None:
    raw = made("pass").to_dict()
    del raw["remedy"]
    with pytest.raises(ValueError, match="remedy"):
        Result.from_dict(raw)


def test_the_catalogue_has_one_row_a_name() -> None:
    names = [check.id for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(check.family and check.title and check.deadline > 0 for check in CHECKS)


def test_tensorboard_values_are_exact_in_32_bits() -> None:
    import numpy as np

    assert [float(np.float32(value)) for _, value in monitor.WRITTEN] == [value for _, value in monitor.WRITTEN]
