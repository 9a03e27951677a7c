"""deep.*: real measurements, in small; baselines; and the fleet's outliers, on documents made for it."""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from trackbed.cli.validate import fleet as fleet_command
from trackbed.errors import ValidationError
from trackbed.validate import MIB, Context, Outcome, baseline, figures, result, runner
from trackbed.validate.deep import checks, compute, ring, storage
from trackbed.validate.report import fleet as fleet_render
from trackbed.validate.site import fleet
from validate_rules import check

CHECKS = {each.id: each for each in checks.CHECKS}


def judged(name: str, tmp_path: Path, **context: Any) -> Outcome:
    measured = CHECKS[name].measure(Context(output=tmp_path / "runs", level="deep", **context))
    return CHECKS[name].judge(json.loads(json.dumps(measured)))


# --- figures ---


def test_a_figure_is_the_median_and_its_standard_error() -> None:
    made = figures.figure([10.0, 12.0, 11.0, 50.0, 9.0], "GB/s")
    assert made.value == 11.0
    assert made.noise == pytest.approx(100 * 1.2533 * 1.4826 * 1.0 / 11.0 / 5**0.5)
    assert figures.figure([3.0], "GB/s").noise == 0.0


def test_more_repeats_make_less_noise() -> None:
    chosen = random.Random(1)
    few, many = ([chosen.gauss(100, 5) for _ in range(count)] for count in (9, 900))
    assert figures.figure(many, "x").noise < figures.figure(few, "x").noise / 3
    # The standard error holds what it promises: medians of many rows differ by as much.
    medians = [statistics.median(chosen.gauss(100, 5) for _ in range(25)) for _ in range(400)]
    noise = statistics.mean(figures.figure([chosen.gauss(100, 5) for _ in range(25)], "x").noise for _ in range(400))
    assert noise == pytest.approx(statistics.stdev(medians), rel=0.25)


def test_figures_survive_evidence_and_garbage_has_none() -> None:
    made = {"copy": figures.figure([1.0, 2.0], "GB/s"), "p99": figures.figure([3.0], "ms", "lower")}
    assert figures.from_evidence(figures.to_evidence(made, how={})) == made
    for text in ("", "garbage", "[]", '{"figures": 3}', '{"figures": {"a": {"value": "x", "better": "higher"}}}'):
        assert figures.from_evidence(text) == {}


# --- real measurements ---


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that a test can wait for; what is measured stays the same."""
    monkeypatch.setattr(compute, "MEMORY_BYTES", 8 * MIB)
    monkeypatch.setattr(compute, "SIDE", 128)
    monkeypatch.setattr(compute, "SECONDS", 0.05)
    for name, value in {"BYTES": 16 * MIB, "CHUNK": 4 * MIB, "ROOM": 32 * MIB, "READS": 50}.items():
        monkeypatch.setattr(storage, name, value)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("name", "names", "unit"),
    [
        ("deep.memory-bandwidth", {"copy", "triad"}, "GB/s"),
        ("deep.matrix-product", {"float32", "bfloat16"}, "TFLOP/s"),
        ("deep.image-decode", {"images"}, "images/s"),
        ("deep.checkpoint-write", {"write"}, "MiB/s"),
        ("deep.checkpoint-read", {"read"}, "MiB/s"),
        ("deep.small-reads", {"p50", "p99"}, "ms"),
    ],
)
def test_a_figure_is_measured_and_nothing_is_left(name: str, names: set[str], unit: str, tmp_path: Path) -> None:
    outcome = judged(name, tmp_path)
    found = figures.from_evidence(outcome.evidence)
    assert outcome.status == "pass", outcome
    assert "no baseline" in outcome.observed
    assert set(found) == names
    assert {each.unit for each in found.values()} == {unit}
    assert all(each.value > 0 for each in found.values())
    assert list(tmp_path.iterdir()) == []


def test_all_reduce_is_measured_between_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, as the runner does it: a fork after torch's threads have run may hang."""
    script = (
        "import json; from pathlib import Path\n"
        "from trackbed.validate import Context; from trackbed.validate.deep import ring\n"
        "ring.GLOO_SIZES = (65536, 1048576)\n"
        "print(json.dumps(ring.measure_gloo(Context(output=Path('.')))))"
    )
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    measured = json.loads(done.stdout.splitlines()[-1])
    assert set(measured["figures"]) == {"64 KiB", "1 MiB"}
    assert all(len(row["runs"]) == ring.SMALL_REPEATS for row in measured["figures"].values())


def test_a_busy_machine_is_seen_and_the_checks_beside_are_waited_for(tmp_path: Path) -> None:
    sibling = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1.5)", checks.RUNNER])
    script = (
        "import time; from pathlib import Path\n"
        "from trackbed.validate import Context; from trackbed.validate.deep import checks\n"
        "started = time.monotonic(); checks.measure_idle(Context(output=Path('.')))\n"
        "print(time.monotonic() - started)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(runner.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert sibling.wait() == 0
    # Two seconds of looking, begun when the check beside it had ended.
    assert 2.0 < float(done.stdout) < 60
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        idle = checks.measure_idle(Context(output=tmp_path))
    finally:
        spinning.kill()
        spinning.wait()
    assert 0 < idle["busy"] <= 100


@pytest.mark.usefixtures("small")
def test_a_folder_without_room_or_rights_is_a_skip_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").write_text("", "utf-8")
    outcome = judged("deep.checkpoint-read", tmp_path)
    assert (outcome.status, "EEXIST" in outcome.observed) == ("skip", True)
    (tmp_path / "runs").unlink()
    monkeypatch.setattr(storage, "ROOM", 1 << 60)
    outcome = judged("deep.checkpoint-write", tmp_path)
    assert outcome.status == "skip"
    assert "measuring needs" in outcome.observed


def test_gpu_figures_skip_without_a_gpu_and_fail_where_the_baseline_has_them(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: its figures are measured")
    for name in ("gpu-memory-bandwidth", "gpu-matrix-product", "gpu-all-reduce"):
        assert judged(f"deep.{name}", tmp_path).status == "skip"
        row = {"value": 3000.0, "unit": "GB/s", "better": "higher"}
        had = {"figures": {f"deep.{name}/gpu 0": row}, "host": "alpha"}
        outcome = judged(f"deep.{name}", tmp_path, baseline=had)
        assert (outcome.status, outcome.observed) == ("fail", "torch sees no GPU on this machine")


@pytest.mark.parametrize(
    ("affinity", "cpuset", "quota", "wanted"),
    [({0, 1, 2, 3}, 4, 2.5, 2), ({0}, None, 8.0, 1), ({0, 1, 2}, 2, 9.0, 2), ({0, 1}, None, 0.5, 1)],
)
def test_threads_are_the_cpus_that_may_be_used(
    affinity: set[int], cpuset: int | None, quota: float, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: affinity)
    limits = compute.cgroup.Limits(cpu_quota=quota, cpuset=cpuset, memory=1.0, oom_kills=0)
    monkeypatch.setattr(compute.cgroup, "limits", lambda: limits)
    assert compute.threads() == wanted


def test_quantiles() -> None:
    values = [float(each) for each in range(100, 0, -1)]
    assert (storage.quantile(values, 0.50), storage.quantile(values, 0.99)) == (51.0, 100.0)
    assert storage.quantile([7.0], 0.99) == 7.0


# --- baselines ---


def measured_results(value: float = 10.0, name: str = "deep.image-decode") -> list[Any]:
    evidence = figures.to_evidence({"images": figures.figure([value], "images/s")})
    return [result(check(name), Outcome(status="pass", observed="", evidence=evidence), host="alpha")]


def test_a_baseline_is_saved_edited_and_held_against(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    assert baseline.save(path, measured_results(100.0), host="alpha", release="26.11") == 1
    part = baseline.part(baseline.load(path), "deep.image-decode")
    now = {"images": figures.figure([92.0], "images/s")}
    assert baseline.compare(now, part, "").status == "warn"
    raw = json.loads(path.read_text("utf-8"))
    assert (raw["warn_percent"], raw["fail_percent"], raw["idle"]) == (5.0, 10.0, True)
    raw["warn_percent"] = 9
    path.write_text(json.dumps(raw), "utf-8")
    assert baseline.compare(now, baseline.part(baseline.load(path), "deep.image-decode"), "").status == "pass"
    assert baseline.part(baseline.load(path), "deep.small-reads")["figures"] == {}
    assert baseline.part({}, "deep.small-reads") == {}


def test_a_baseline_of_a_busy_machine_says_so(tmp_path: Path) -> None:
    busy = result(check("deep.idle"), Outcome(status="warn", observed="busy"), host="alpha")
    baseline.save(tmp_path / "b.json", [busy, *measured_results()], host="alpha", release="26.11")
    part = baseline.part(baseline.load(tmp_path / "b.json"), "deep.image-decode")
    assert part["of"] == "baseline of alpha, saved on a machine that was not idle"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("garbage", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "is no baseline of this version"),
        ('{"schema_version": 2}', "is no baseline of this version"),
        ('{"schema_version": 1, "figures": {}}', "has no figures"),
        ('{"schema_version": 1, "figures": {"a/b": {"value": "x"}}}', "`a/b` is no figure"),
        (
            '{"schema_version": 1, "warn_percent": "few", "figures": {"a/b": {"value": 1, "better": "lower"}}}',
            "`warn_percent` is not a number",
        ),
        (
            '{"schema_version": 1, "figures": {"a/b": {"value": 1, "better": "lower", "fail_percent": -1}}}',
            "`a/b.fail_percent` is not a number",
        ),
    ],
)
def test_a_baseline_that_is_none_is_refused_with_what_is_wrong(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(text, "utf-8")
    with pytest.raises(ValidationError, match=re.escape(says)) as raised:
        baseline.load(path)
    assert raised.value.problems[0].where == str(path)
    assert "--save-baseline" in raised.value.problems[0].remedy


def test_a_baseline_that_is_not_there_or_cannot_be_written_or_has_nothing_in_it(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="No such file"):
        baseline.load(tmp_path / "none.json")
    with pytest.raises(ValidationError, match="no figure was measured"):
        baseline.save(tmp_path / "b.json", [], host="a", release="r")
    with pytest.raises(ValidationError, match="cannot be written"):
        baseline.save(tmp_path / "none" / "b.json", measured_results(), host="a", release="r")


# --- the fleet ---


def document(host: str, copy: float | None = 100.0, release: str = "26.11", status: str = "pass") -> dict[str, Any]:
    """One node's `trackbed validate --level deep --json`; without `copy` it has measured only the other figure."""
    chosen = random.Random(host)
    rows = {"triad": figures.figure([chosen.gauss(120, 0.5)], "GB/s")}
    rows |= {} if copy is None else {"copy": figures.figure([copy + chosen.gauss(0, 0.2)], "GB/s")}
    outcome = Outcome(status="pass", observed="", evidence=figures.to_evidence(rows))
    other = Outcome(status=status, observed="64 MiB")  # type: ignore[arg-type]
    results = [
        result(check("deep.memory-bandwidth"), outcome, host=host),
        result(check("host.shared-memory"), other, host=host),
    ]
    return {
        "schema_version": 1,
        "release": release,
        "host": host,
        "created": "2026-11-30T10:00:00Z",
        "results": [each.to_dict() for each in results],
    }


def write(folder: Path, *documents: Any) -> list[Path]:
    paths = []
    for index, each in enumerate(documents):
        paths.append(folder / f"{index}.json")
        paths[-1].write_text(each if isinstance(each, str) else json.dumps(each), "utf-8")
    return paths


def good(count: int) -> list[dict[str, Any]]:
    return [document(f"node{index:02}") for index in range(count)]


def test_a_fleet_where_all_are_alike_has_nothing_to_say(tmp_path: Path) -> None:
    view = fleet.view(*fleet.read(write(tmp_path, *good(16))))
    assert view.outliers == []
    assert view.exit_code == 0
    assert fleet_render.to_text(view) == "16 nodes, 2 figures, 0 worse than the others, 0 with failing checks"


@pytest.mark.parametrize(
    "text", ["[" * 100_000, json.dumps({**document("n"), "schema_version": 2}), "[]", '{"results": 3}', '"x"', "\x00"]
)
def test_what_is_no_validation_is_named_and_ends_nothing(tmp_path: Path, text: str) -> None:
    found, unread = fleet.read(write(tmp_path, document("n"), text))
    assert [node.name for node in found] == ["n"]
    assert "is not what `trackbed validate --json` writes" in unread[str(tmp_path / "1.json")]


def test_one_slow_node_is_named_by_its_figure(tmp_path: Path) -> None:
    view = fleet.view(*fleet.read(write(tmp_path, *good(7), document("slow", copy=80.0))))
    ((strip, outlier),) = view.outliers
    assert (strip.name, outlier.node, outlier.worse) == ("deep.memory-bandwidth/copy", "slow", True)
    assert outlier.percent == pytest.approx(-20, abs=1)
    assert fleet_render.to_text(view).startswith("worse  slow: deep.memory-bandwidth/copy 8")
    assert view.exit_code == 1


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        ([100, 100, 100, 96], []),  # not 5 percent off
        ([100, 100, 100, 94], ["3"]),  # most are equal: the percentage decides
        ([100, 101, 99, 100, 50, 50], ["4", "5"]),
        ([100, 101, 100, 50, 51, 50], []),  # half of them is no outlier
        ([100, 101, 99, 102, 98, 80], ["5"]),
        ([100, 101, 99, 102, 98, 120], ["5"]),
        ([100, 110, 90, 105, 95, 80], []),  # they differ anyway
        ([100, 100, 50], []),  # too few
        ([5, 5, 5, 5], []),
    ],
)
def test_outliers_are_far_in_deviations_and_in_percent(values: list[float], odd: list[str]) -> None:
    found = fleet.outliers({str(index): value for index, value in enumerate(values)}, "higher")
    assert [each.node for each in found] == odd


def test_lower_is_better_turns_worse_around() -> None:
    values = {"a": 10.0, "b": 10.1, "c": 9.9, "d": 10.0, "slow": 20.0, "quick": 5.0}
    found = {each.node: each.worse for each in fleet.outliers(values, "lower")}
    assert found == {"slow": True, "quick": False}


def test_a_missing_figure_is_named(tmp_path: Path) -> None:
    view = fleet.view(*fleet.read(write(tmp_path, *good(5), document("mute", copy=None))))
    assert "odd    deep.memory-bandwidth/copy: no figure from mute" in fleet_render.to_text(view)
    assert view.exit_code == 1


def test_two_nodes_are_too_few_to_name_one_and_it_says_so(tmp_path: Path) -> None:
    view = fleet.view(*fleet.read(write(tmp_path, document("a"), document("b", copy=10.0))))
    assert view.outliers == []
    assert "2 nodes: outliers need 4 or more" in fleet_render.to_text(view)


@pytest.mark.parametrize(
    "garbage", ["garbage", "[]", "{}", '{"host": "a", "results": []}', '{"host": 3, "results": [1]}']
)
def test_a_garbage_file_is_named_and_the_rest_is_shown(garbage: str, tmp_path: Path) -> None:
    view = fleet.view(*fleet.read([*write(tmp_path, *good(4), garbage), tmp_path / "none.json"]))
    text = fleet_render.to_text(view)
    assert f"{tmp_path / '4.json'} is not what `trackbed validate --json` writes" in text
    assert "none.json cannot be read: No such file" in text
    assert "4 nodes, 2 figures" in text
    assert view.exit_code == 3


def test_failing_checks_and_other_releases_are_named_with_their_nodes(tmp_path: Path) -> None:
    nodes = [*good(4), document("bad", status="fail"), document("old", release="23.07", status="warn")]
    view = fleet.view(*fleet.read(write(tmp_path, *nodes)))
    text = fleet_render.to_text(view)
    assert "fail   host.shared-memory: bad" in text
    assert "warn   host.shared-memory: old" in text
    assert "odd    release 23.07: old" in text
    assert view.exit_code == 2


def test_the_newer_of_two_files_of_a_node_counts(tmp_path: Path) -> None:
    newer = {**document("a", copy=50.0), "created": "2026-12-01T10:00:00Z"}
    nodes, _ = fleet.read(write(tmp_path, newer, document("a")))
    assert [round(node.figures["deep.memory-bandwidth/copy"].value) for node in nodes] == [50]


class Page(HTMLParser):
    """What of a page matters: what it would fetch, its text, its pictures' marks."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.circles: list[dict[str, str | None]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.fetched += [str(given[name]) for name in ("src", "href") if name in given]
        if tag != "meta":
            self.open.append(tag)
        if tag == "circle":
            self.circles.append(given)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_is_whole_and_fetches_nothing(tmp_path: Path) -> None:
    nodes = [*good(7), document("<slow>", copy=80.0), document("mute", copy=None)]
    text = fleet_render.to_html(fleet.view(*fleet.read(write(tmp_path, *nodes, "garbage"))))
    page = Page(text)
    assert page.open == []
    assert page.fetched == []
    assert "<script" not in text
    assert "url(" not in text
    assert "<slow>" in page.words
    assert len(page.circles) == 8 + 9
    odd = [circle for circle in page.circles if circle["fill"] == "var(--bad)"]
    usual = [float(str(circle["cx"])) for circle in page.circles if circle["fill"] != "var(--bad)"]
    assert len(odd) == 1
    assert float(str(odd[0]["cx"])) <= min(usual)
    assert all(0 <= x <= fleet_render.WIDTH for x in usual)


def test_the_command_names_who_is_off_and_writes_the_page(tmp_path: Path) -> None:
    paths = write(tmp_path, *good(6), document("slow", copy=80.0))
    page = tmp_path / "fleet.html"
    done = CliRunner().invoke(fleet_command, [*map(str, paths), "--html", str(page)])
    assert done.exit_code == 1
    assert "worse  slow: deep.memory-bandwidth/copy" in done.output
    assert "slow" in page.read_text("utf-8")
    assert CliRunner().invoke(fleet_command, [*map(str, paths[:6])]).exit_code == 0
    assert CliRunner().invoke(fleet_command, [str(tmp_path / "none.json")]).exit_code == 3
