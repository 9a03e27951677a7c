"""Job templates: every mistake named by file and line, all at once, exit 2, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import ROOT, Command
from trackbed import job as jobs
from trackbed.errors import JobError

MINIMAL = """\
name: tiny
model:
  name: somewhere
data:
  train: a.jsonl
  heldout: b.jsonl
train:
  steps: 3
"""


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., jobs.Job]:
    def write_and_load(text: str, *overrides: str) -> jobs.Job:
        path = tmp_path / "job.yaml"
        path.write_text(text, "utf-8")
        return jobs.load(path, overrides)

    return write_and_load


def problems(load: Callable[..., jobs.Job], text: str, *overrides: str) -> list[str]:
    with pytest.raises(JobError) as caught:
        load(text, *overrides)
    return [str(problem) for problem in caught.value.problems]


def test_a_misspelt_key_is_named_with_its_line_and_the_nearest(load: Callable[..., jobs.Job]) -> None:
    (text,) = problems(load, MINIMAL + "  learning_rat: 0.1\n")
    assert "job.yaml:9: unknown key `train.learning_rat`" in text
    assert "did you mean `learning_rate`?" in text


def test_an_unknown_section_is_named(load: Callable[..., jobs.Job]) -> None:
    (text,) = problems(load, MINIMAL + "optimiser:\n  kind: sgd\n")
    assert "job.yaml:9: unknown key `optimiser`" in text
    assert "model, data, train" in text


def test_a_wrong_type_says_what_was_wanted(load: Callable[..., jobs.Job]) -> None:
    (text,) = problems(load, MINIMAL.replace("steps: 3", "steps: three"))
    assert "job.yaml:8: `train.steps` is 'three'" in text
    assert "valid integer" in text


def test_a_number_in_quotes_is_not_a_number(load: Callable[..., jobs.Job]) -> None:
    (text,) = problems(load, MINIMAL.replace("steps: 3", "steps: '3'"))
    assert "valid integer" in text


def test_all_mistakes_are_shown_at_once(load: Callable[..., jobs.Job]) -> None:
    text = MINIMAL.replace("steps: 3", "steps: -1\n  zero_stage: 9").replace("  heldout: b.jsonl\n", "  pak: true\n")
    found = problems(load, text)
    assert len(found) == 4
    assert any("job.yaml:8: `train.steps` is -1" in problem for problem in found)
    assert any("job.yaml:9: `train.zero_stage` is 9" in problem for problem in found)
    assert any("job.yaml:6: unknown key `data.pak`" in problem for problem in found)
    assert any("job.yaml:4: `data.heldout` is missing" in problem for problem in found)


def test_a_key_that_stands_twice_is_named(load: Callable[..., jobs.Job]) -> None:
    (text,) = problems(load, MINIMAL + "  steps: 4\n")
    assert "job.yaml:9: `train.steps` stands twice, first at" in text
    assert "job.yaml:8" in text


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words\n"])
def test_what_is_no_mapping_is_no_job(load: Callable[..., jobs.Job], text: str) -> None:
    (found,) = problems(load, text)
    assert "not a mapping" in found


def test_broken_yaml_has_a_line(load: Callable[..., jobs.Job]) -> None:
    (text,) = problems(load, MINIMAL + "evaluate: [1, 2\n")
    assert "job.yaml:" in text
    assert "not YAML" in text


@pytest.mark.parametrize("value", ["!foo bar", "2024-13-45"])
def test_values_that_yaml_cannot_make_are_no_traceback(load: Callable[..., jobs.Job], value: str) -> None:
    (text,) = problems(load, MINIMAL.replace("name: tiny", f"name: {value}"))
    assert "not a plain value" in text


def test_rows_must_hold_the_longest_sample(load: Callable[..., jobs.Job]) -> None:
    (text,) = problems(load, MINIMAL, "data.row_length=16", "data.max_length=32")
    assert "row_length (16) is shorter than data.max_length (32)" in text


def test_numbers_in_scientific_notation_are_numbers(load: Callable[..., jobs.Job]) -> None:
    assert load(MINIMAL + "  learning_rate: 4e-4\n").train.learning_rate == pytest.approx(4e-4)


def test_overrides_win_and_their_mistakes_are_theirs(load: Callable[..., jobs.Job]) -> None:
    assert load(MINIMAL, "train.steps=7", "evaluate.every=5").evaluate.every == 5
    (text,) = problems(load, MINIMAL, "train.stepz=7")
    assert "--set train.stepz=7: unknown key" in text
    (text,) = problems(load, MINIMAL, "train.steps")
    assert "--set section.key=value" in text


def test_a_dumped_job_loads_as_the_same_job(load: Callable[..., jobs.Job]) -> None:
    job = load(MINIMAL, "train.learning_rate=3e-5")
    again = load(jobs.dump(job))
    assert again.train == job.train
    assert again.data.train == str(Path("a.jsonl").absolute())
    assert load(jobs.dump(again)) == again


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").rglob("*.yaml")), ids=lambda path: path.name)
def test_every_template_is_valid_and_says_how_to_run_it(path: Path) -> None:
    jobs.load(path)
    assert f"trackbed submit jobs/{path.name}" in path.read_text()


def test_the_published_schema_is_current() -> None:
    assert (ROOT / "jobs" / "job.schema.json").read_text() == jobs.schema()


def test_a_missing_job_is_one_clear_error(trackbed: Command, tmp_path: Path) -> None:
    done = trackbed("submit", tmp_path / "no.yaml")
    assert done.returncode == 2
    assert "no.yaml: the job cannot be read" in done.stderr
    assert "Traceback" not in done.stderr
