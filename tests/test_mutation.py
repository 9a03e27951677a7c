"""The mutation test itself: what it changes, what it notices, what it lets pass. And the tables' TEXTS."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import judge_functions
import mutants
import mutation
from mutation import Report, Row, Rules
from test_validate import RULES
from trackbed.validate.catalogue import CHECKS

SAMPLE = """
from __future__ import annotations

LIMIT = 10


def judge(value):
    if not isinstance(value, int):
        return "error"
    return "fail" if value < 3 else "warn" if _many(value) and value != 13 else "pass"


def _many(value):
    return value > LIMIT


def measure(value):
    return value == 99
"""
CHANGES = [
    "8: `not isinstance(value, int)` -> `not not isinstance(value, int)`",
    "10: `value < 3` -> `value <= 3`",
    "10: `value < 3` -> `value >= 3`",
    "10: `value < 3` -> `value < 2`",
    "10: `value < 3` -> `value < 4`",
    "10: `_many(value) and value != 13` -> `_many(value) or value != 13`",
    "10: `value != 13` -> `value == 13`",
    "10: `value != 13` -> `value != 12`",
    "10: `value != 13` -> `value != 14`",
    "14: `value > LIMIT` -> `value >= LIMIT`",
    "14: `value > LIMIT` -> `value <= LIMIT`",
    "14: `value > LIMIT` -> `value > 9`",
    "14: `value > LIMIT` -> `value > 11`",
]
TABLE: dict[Any, str] = {
    None: "error", 2: "fail", 3: "pass", 10: "pass", 11: "warn", 12: "warn", 13: "pass", 14: "warn",
}  # fmt: skip
Make = Callable[..., Rules]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Writes and loads a module of rules; its rows are values and what its judge says of them."""
    names: list[str] = []

    def sample(source: str, table: Mapping[Any, Any]) -> Rules:
        name = f"sample_{id(tmp_path)}_{len(names)}"
        names.append(name)
        path = tmp_path / name / "sample.py"
        path.parent.mkdir()
        path.write_text(source, "utf-8")
        spec = spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(module)
        rows = [Row(check="a.b", shown=str(row), holds=partial(same, module.judge, *row)) for row in table.items()]
        return Rules(package=name, judges={"a.b": module.judge}, rows=rows, patience=0.3)

    yield sample
    for name in names:
        del sys.modules[name]


def same(judge: Callable[[Any], Any], value: Any, wanted: Any) -> None:
    assert judge(value) == wanted


def without(*missing: Any) -> dict[Any, str]:
    return {value: status for value, status in TABLE.items() if value not in missing}


def only(rules: Rules) -> Report:
    (report,) = mutation.examine(rules)
    return report


def shown(found: list[mutants.Mutant]) -> list[str]:
    return [f"{each.line}: {each.change}" for each in found]


def test_every_comparison_that_a_judge_comes_to_is_changed_and_no_other(make: Make) -> None:
    rules = make(SAMPLE, {})
    assert sorted(shown(mutants.mutants(rules.judges, rules.package))) == sorted(CHANGES)


def test_rows_on_both_sides_of_every_boundary_leave_no_survivor(make: Make) -> None:
    report = only(make(SAMPLE, TABLE))
    assert (report.family, report.made, report.survivors, report.allowed) == ("a", len(CHANGES), [], [])


def test_without_any_row_every_change_survives(make: Make) -> None:
    assert sorted(shown(only(make(SAMPLE, {})).survivors)) == sorted(CHANGES)


@pytest.mark.parametrize(("missing", "survivors"), [(2, [3]), (3, [1, 4]), (10, [9, 11]), (11, [12])])
def test_a_row_that_is_missing_leaves_what_it_alone_holds(make: Make, missing: int, survivors: list[int]) -> None:
    report = only(make(SAMPLE, without(missing)))
    assert sorted(shown(report.survivors)) == sorted(CHANGES[at] for at in survivors)


def test_what_was_changed_is_put_back(make: Make) -> None:
    rules = make(SAMPLE, TABLE)
    before = rules.judges["a.b"].__code__
    mutation.examine(rules)
    assert rules.judges["a.b"].__code__ is before
    assert mutation.red(rules) == []


def test_a_change_that_loops_for_ever_is_noticed_by_the_deadline(make: Make) -> None:
    source = """
from __future__ import annotations


def judge(value):
    while value < 1:
        try:
            value = value + 1
        except Exception:
            pass
    return value
"""
    survivors = shown(only(make(source, {5: 5})).survivors)
    assert survivors == [f"6: `value < 1` -> `value {each}`" for each in ("<= 1", "< 0", "< 2")]


HIDDEN = {
    "bound to a partial": "def _few(limit, value):\n    return value < 3\n\n\njudge = functools.partial(_few, 9)",
    "given to a partial": "def _of(rule, value):\n    return rule(value)\n\n\n"
    "def _few(value):\n    return value < 3\n\n\njudge = functools.partial(_of, _few)",
    "made by a function": "def _make(limit):\n    def few(value):\n        return value < 3\n\n    return few\n\n\n"
    "judge = _make(9)",
    "in a closure": "def _make(rule):\n    return lambda value: rule(value)\n\n\n"
    "judge = _make(lambda value: value < 3)",
    "one of a line's lambdas": "RULES = [lambda value: value, lambda value: value < 3]\n\n\n"
    "def judge(value):\n    return RULES[1](value)",
    "cached": "@functools.cache\ndef _few(value):\n    return value < 3\n\n\ndef judge(value):\n    return _few(value)",
    "a method": "class Rule:\n    def few(self, value):\n        return value < 3\n\n\n"
    "def judge(value):\n    return Rule().few(value)",
    "a property": "class Rule:\n    value = 2\n\n    @property\n    def few(self):\n        return self.value < 3\n\n\n"
    "def judge(value):\n    rule = Rule()\n    rule.value = value\n    return rule.few",
    "a method that nobody names": "class Rule:\n    def __call__(self, value):\n        return value < 3\n\n\n"
    "def judge(value):\n    return Rule()(value)",
    "a method of what a field holds": "@dataclasses.dataclass\nclass Rule:\n    value: int\n\n    def few(self):\n"
    "        return self.value < 3\n\n\n@dataclasses.dataclass\nclass Found:\n    rules: list[Rule]\n\n\n"
    "def judge(value):\n    return next(each.few() for each in Found([Rule(value)]).rules)",
    "in a generator": "def judge(value):\n    return any(each < 3 for each in [value])",
}


@pytest.mark.parametrize("source", HIDDEN.values(), ids=HIDDEN)
def test_a_comparison_is_found_wherever_a_judge_has_it(make: Make, source: str) -> None:
    source = f"from __future__ import annotations\n\nimport dataclasses\nimport functools\n\n\n{source}\n"
    assert [(each.made, each.survivors) for each in mutation.examine(make(source, {2: True, 3: False}))] == [(4, [])]
    survivors = shown(only(make(source, {2: True})).survivors)
    assert [change.rstrip("`)")[-4:] for change in survivors] == ["<= 3", " < 4"]


def test_numbers_that_are_no_whole_numbers_change_by_a_hundredth(make: Make) -> None:
    source = "from __future__ import annotations\n\n\ndef judge(value):\n    return value > 0.5\n"
    assert only(make(source, {0.5: False, 0.504: True})).survivors == []
    assert len(only(make(source, {0.5: False, 0.506: True})).survivors) == 1


# --- what is allowed ---

REASON = "# mutation: equivalent, because nobody has ten"


def commented(comment: str) -> str:
    return SAMPLE.replace("return value > LIMIT", f"return value > LIMIT  {comment}")


def folder(rules: Rules) -> Path:
    return Path(sys.modules[rules.package].__file__ or "").parent


def test_a_reason_on_the_line_allows_what_survives_there(make: Make) -> None:
    rules = make(commented(REASON), without(10))
    report = only(rules)
    assert (report.survivors, len(report.allowed)) == ([], 2)
    assert mutation.unused([report], folder(rules)) == []


def test_a_reason_allows_nothing_on_another_line(make: Make) -> None:
    assert len(only(make(commented(REASON), without(3))).survivors) == 2


@pytest.mark.parametrize(
    "comment", ["# mutation: equivalent", "# mutation: equivalent, because", REASON.split("nob")[0]]
)
def test_a_comment_without_a_reason_allows_nothing(make: Make, comment: str) -> None:
    rules = make(commented(comment), without(10))
    report = only(rules)
    assert (len(report.survivors), report.allowed) == (2, [])
    assert len(mutation.unused([report], folder(rules))) == 1


def test_a_reason_for_what_does_not_survive_is_reported(make: Make) -> None:
    rules = make(commented(REASON), TABLE)
    assert mutation.unused([only(rules)], folder(rules)) == [f"{folder(rules)}/sample.py:14"]


# --- the command ---


def main(rules: Rules, monkeypatch: pytest.MonkeyPatch, *families: str) -> int:
    monkeypatch.setattr(mutation, "ours", lambda: rules)
    return mutation.main(families)


def test_no_survivor_is_exit_0(make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(make(SAMPLE, TABLE), monkeypatch) == 0
    said = capsys.readouterr()
    assert "13 mutants    13 killed    0 survivors" in said.out.splitlines()[-1]
    assert said.err.startswith("a  ")


def test_a_survivor_is_named_with_file_line_change_and_check_and_is_exit_1(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(make(SAMPLE, without(11)), monkeypatch, "a") == 1
    assert "sample.py:14: `value > LIMIT` -> `value > 11` (a.b)" in capsys.readouterr().out


def test_a_row_that_is_red_anyway_is_exit_1_and_notices_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(make(SAMPLE, {**without(3), 20: "fail"}), monkeypatch) == 1
    said = capsys.readouterr().out
    assert "red without a change: a.b: (20, 'fail')" in said
    assert said.count("survivor: ") == 2


def test_a_comment_that_allows_nothing_is_exit_1(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(make(commented(REASON), TABLE), monkeypatch) == 1
    assert main(make(commented(REASON), TABLE), monkeypatch, "a") == 0


def test_a_family_that_does_not_exist_is_an_error(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="no check is of the family zoo"):
        main(make(SAMPLE, TABLE), monkeypatch, "zoo")


# --- the catalogue ---


def test_a_boundary_that_loses_its_row_is_a_survivor() -> None:
    rules = mutation.ours()
    mine = [row for row in rules.rows if row.check == "host.shared-memory"]
    few = replace(rules, judges={"host.shared-memory": rules.judges["host.shared-memory"]})
    whole, less = (
        str([shown(report.survivors) for report in mutation.examine(replace(few, rows=rows))])
        for rows in (mine, [row for row in mine if row.shown != "pass, '1 GiB'"])
    )
    assert "value < GIB" not in whole
    assert "`value < GIB` -> `value <= GIB`" in less


def test_every_function_that_a_judge_calls_is_known() -> None:
    known = {
        (check.id, place(unit.function.__code__))
        for check in CHECKS for unit in judge_functions.units(check.judge, "trackbed.validate")
    }  # fmt: skip
    unknown = {(check, called) for check, called in really_called() if (check, called) not in known}
    assert unknown == set()


def really_called() -> set[tuple[str, tuple[str, str]]]:
    """The package's own functions that run while rows are judged, by check; a function inside another is part of it."""
    found = set()
    judges = {check.id: check.judge for check in CHECKS}

    def called(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and "/trackbed/validate/" in code.co_filename and "<locals>" not in code.co_qualname:
            found.add((name, place(code)))

    for name, measured, _, _ in RULES:
        sys.setprofile(called)
        try:
            judges[name](measured)
        finally:
            sys.setprofile(None)
    return found


def place(code: Any) -> tuple[str, str]:
    return code.co_filename, code.co_qualname


@pytest.mark.parametrize(("name", "measured", "part", "pattern"), mutation.texts())
def test_texts(name: str, measured: Any, part: str, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACKBED_RELEASE", raising=False)
    mutation.holds_text(name, measured, part, pattern)
