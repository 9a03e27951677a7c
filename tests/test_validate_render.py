"""Every format says the same results: text for one screen, JSON and its schema, JUnit, Prometheus, a page, the docs."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import pytest
from rich.console import Console

from conftest import ROOT
from trackbed.validate import DOCS, Check, Outcome, Result, Status, result
from trackbed.validate.catalogue import CHECKS
from trackbed.validate.report import docs, html, junit, prometheus, schema, screen
from trackbed.validate.report.record import Report, report

WHEN = 1796035323.25  # 2026-11-30T10:42:03Z
SECRET = "hf-0123456789abcdef"
NASTY = 'a "b" \\ <c> & \x1b[31mred\x1b[0m\nnext ✓ {d="e"} [bold]x[/bold] ]]>'


def check(id: str, **changes: Any) -> Check:
    fields = {"measure": None, "judge": None, "deadline": 1.0, **changes}
    return Check(id=id, title="a title", **fields)


def made(status: Any, id: str = "host.cpus", *, milliseconds: int = 3, source: Any = "real", **changes: str) -> Result:
    fields = {"observed": "seen", "expected": "wanted thing", "remedy": "mend thing", **changes}
    outcome = Outcome(status=status, **fields)
    return result(check(id), outcome, host="h", duration_ms=milliseconds, source=source)


def of(*results: Result) -> Report:
    return report(results, release="26.11", host="h", created=WHEN)


ALL = of(*(made(status, f"host.{status}", observed=f"{status} seen") for status in get_args(Status)))


def text_of(validation: Report, *, width: int = 80, verbose: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(screen.as_text(validation, verbose=verbose))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# --- text ---


def many(*, passes: int = 50, skips: int = 20) -> Report:
    """A good machine: eight families, each of them long, and hardware that is not here."""
    good = [made("pass", f"{'abcdefgh'[i % 8]}amily.check-number-{i}", observed="long " * 40) for i in range(passes)]
    idle = [
        made("skip", f"{('gpu', 'rdma')[i % 2]}.x{i}", observed=f"no {('GPU', 'RDMA')[i % 2]}") for i in range(skips)
    ]
    return of(*good, *idle)


def test_seventy_good_checks_fit_one_screen() -> None:
    lines = text_of(many()).splitlines()
    assert len(lines) <= 12
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].rstrip() == "skip  20 not for this machine: 10 no GPU (gpu); 10 no RDMA (rdma)"
    assert lines[1].startswith("pass  aamily      7  check-number-0, check-number-8")
    assert lines[-1] == "release 26.11 on h: 50 pass, 20 skip"


def test_the_whole_catalogue_passing_fits_one_screen() -> None:
    lines = text_of(of(*(made("pass", check.id) for check in CHECKS))).splitlines()
    assert len(lines) <= 40
    assert sum(int(line.split()[2]) for line in lines[:-1]) == len(CHECKS)


def test_verbose_names_every_check_with_what_was_seen() -> None:
    text = text_of(many(), verbose=True)
    assert len(re.findall(r"^pass  \S+ +long", text, re.MULTILINE)) == 50
    assert len(re.findall(r"^skip  \S+ +no (GPU|RDMA) *$", text, re.MULTILINE)) == 20


def test_skips_are_folded_by_what_most_of_them_lack() -> None:
    reasons = [reason for index, reason in enumerate("abcdef") for _ in range(9 - index)]
    folded = of(*(made("skip", f"{reason}x.y{i}", observed=f"no {reason}") for i, reason in enumerate(reasons)))
    text = " ".join(text_of(folded).split())
    wanted = "39 not for this machine: 9 no a (ax); 8 no b (bx); 7 no c (cx); 6 no d (dx); 9 for other reasons (ex, fx)"
    assert f"skip {wanted}: --verbose release" in text


def test_a_reason_that_one_line_more_would_hide_is_shown() -> None:
    five = of(*(made("skip", f"gpu.{name}", observed=f"no {name}") for name in "abcde"))
    assert "1 no d (gpu); 1 no e (gpu)" in " ".join(text_of(five).split())


def test_the_worst_comes_first_with_what_was_wanted_and_how_to_mend_it() -> None:
    lines = text_of(ALL).splitlines()
    heads = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert heads == ["error", "fail", "warn", "skip", "pass", "release"]
    failed = lines.index(next(line for line in lines if line.startswith("fail")))
    assert lines[failed].split() == ["fail", "host.fail", "fail", "seen"]
    assert lines[failed + 1].split() == ["wanted", "wanted", "thing"]
    assert lines[failed + 2].split() == ["mend", "mend", "thing"]
    assert lines[-1] == "release 26.11 on h: 1 pass, 1 warn, 1 fail, 1 skip, 1 error"


def test_what_is_long_and_bad_is_wrapped_and_never_cut() -> None:
    words = [f"word{index}" for index in range(60)]
    text = text_of(of(made("fail", observed=" ".join(words), remedy=" ".join(words))))
    assert [word for word in text.split() if word.startswith("word")] == words * 2
    assert max(map(len, text.splitlines())) <= 80


def test_brackets_in_what_was_seen_are_not_markup() -> None:
    assert "[bold]seen[/bold]" in text_of(of(made("fail", observed="[bold]seen[/bold]")))


def test_a_fixture_is_never_shown_as_this_machine() -> None:
    fixture = of(made("fail", source="fixture"))
    assert "recorded fixture" in text_of(fixture)
    assert "recorded fixture" in junit.to_junit(fixture)
    assert "recorded fixture" in html.to_html(fixture)


def test_nothing_checked_is_said() -> None:
    assert text_of(of()) == "release 26.11 on h: nothing was checked\n"
    assert html.verdict(of()) == "Nothing was checked"
    assert "<svg" in html.to_html(of())


def test_text_as_the_submitter_prints_it() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(screen.to_text(ALL.results, release="26.11", host="h"))
    assert console.file.getvalue() == text_of(ALL)  # type: ignore[attr-defined]


# --- secrets ---


def test_no_format_tells_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    told = Result.from_dict({**made("fail").to_dict(), "observed": f"got {SECRET}", "evidence": f"x={SECRET}"})
    validation = of(Result.from_dict({**told.to_dict(), "remedy": f"use {SECRET}", "expected": SECRET}))
    texts = [
        text_of(validation), screen.as_json(validation.document()), junit.to_junit(validation),
        prometheus.to_prometheus(validation, exit_code=2), html.to_html(validation),
        screen.to_json([told], release="26.11", host="h"),
    ]  # fmt: skip
    assert not [text for text in texts if SECRET in text]


# --- JSON and its schema ---


def test_the_json_document() -> None:
    document = json.loads(screen.to_json([made("pass"), made("fail")], release="26.11", host="h"))
    assert (document["schema_version"], document["release"], document["host"]) == (1, "26.11", "h")
    assert [done["status"] for done in document["results"]] == ["fail", "pass"]
    assert document["summary"] == {"pass": 1, "warn": 0, "fail": 1, "skip": 0, "error": 0}
    assert document["results"][0]["docs"] == f"{DOCS}#host-cpus"
    assert of().document()["created"] == "2026-11-30T10:42:03Z"


def test_a_record_of_a_document_is_read_back() -> None:
    record = ALL.document()["results"][0]
    assert Result.from_dict(record).to_dict() == record
    assert Result.from_dict({name: value for name, value in record.items() if name != "docs"}).to_dict() == record


def mistakes(value: Any, wanted: dict[str, Any], root: dict[str, Any], where: str = "$") -> list[str]:
    """Hold a value against the part of JSON Schema that ours uses; fails on a keyword it does not know."""
    if "$ref" in wanted:
        return mistakes(value, root["$defs"][wanted["$ref"].rpartition("/")[2]], root, where)
    known = {"type", "enum", "const", "minimum", "pattern", "properties", "required", "items", "additionalProperties"}
    assert set(wanted) <= known | {"description", "title", "$schema", "$id", "$defs"}
    kinds = {"string": str, "integer": int, "object": dict, "array": list}
    kind = kinds.get(wanted.get("type", ""), object)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        return [f"{where} is no {wanted['type']}"]
    found = []
    found += [where] if "enum" in wanted and value not in wanted["enum"] else []
    found += [where] if "const" in wanted and value != wanted["const"] else []
    found += [where] if "minimum" in wanted and value < wanted["minimum"] else []
    found += [where] if "pattern" in wanted and not re.search(wanted["pattern"], value) else []
    found += [f"{where}.{name}" for name in wanted.get("required", ()) if name not in value]
    for name, each in wanted.get("properties", {}).items():
        found += mistakes(value[name], each, root, f"{where}.{name}") if name in value else []
    for index, each in enumerate(value if isinstance(value, list) else ()):
        found += mistakes(each, wanted["items"], root, f"{where}[{index}]")
    return found


def test_the_schema_describes_the_document() -> None:
    document = json.loads(screen.as_json(ALL.document()))
    assert mistakes(document, schema.schema(), schema.schema()) == []
    assert set(schema.schema()["properties"]) == set(document)
    assert set(schema.schema()["$defs"]["result"]["properties"]) == set(document["results"][0])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["schema_version"], 2),
        (["level"], "moon"),
        (["created"], "yesterday"),
        (["results"], {}),
        (["summary", "pass"], -1),
        (["results", 0, "status"], "good"),
        (["results", 0, "id"], "Host CPUs"),
        (["results", 0, "duration_ms"], 1.5),
        (["results", 0, "source"], "rumour"),
        (["results", 0, "docs"], "docs/other.md#x"),
        (["results", 0, "remedy"], None),
    ],
)
def test_the_schema_refuses_what_is_not_ours(path: list[Any], value: Any) -> None:
    document = json.loads(screen.as_json(ALL.document()))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert len(mistakes(document, schema.schema(), schema.schema())) == 1
    del place[path[-1]]
    assert len(mistakes(document, schema.schema(), schema.schema())) == 1


def test_the_schema_holds_every_check_of_the_catalogue() -> None:
    pattern = schema.schema()["$defs"]["result"]["properties"]["id"]["pattern"]
    assert [check.id for check in CHECKS if not re.search(pattern, check.id)] == []


# --- JUnit ---


def test_junit_has_a_case_a_check_and_counts_that_agree() -> None:
    root = ElementTree.fromstring(junit.to_junit(of(*ALL.results, made("pass", "stack.drift"))))
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert len(cases) == 6
    assert {name: [child.tag for child in case][:1] for name, case in cases.items()} == {
        "host.pass": ["system-out"],
        "host.warn": ["system-out"],
        "host.fail": ["failure"],
        "host.skip": ["skipped"],
        "host.error": ["error"],
        "stack.drift": ["system-out"],
    }
    assert [suite.get("name") for suite in root] == ["host", "stack"]
    for place in (root, root[0]):
        assert [place.get(name) for name in ("failures", "errors", "skipped")] == ["1", "1", "1"]
    assert (root.get("tests"), root[0].get("tests"), root[0].get("hostname")) == ("6", "5", "h")
    assert root[0].get("timestamp") == "2026-11-30T10:42:03"
    failure = cases["host.fail"][0]
    assert (failure.get("message"), failure.get("type")) == ("fail seen", "fail")
    assert "mend: mend thing" in (failure.text or "")
    assert f"docs: {DOCS}#host-fail" in (failure.text or "")


def test_junit_calls_a_warning_a_failure_only_when_strict() -> None:
    root = ElementTree.fromstring(junit.to_junit(ALL, strict=True))
    assert (root.get("failures"), root.get("errors"), root.get("skipped")) == ("2", "1", "1")


def test_junit_of_anything_is_xml() -> None:
    text = junit.to_junit(of(made("fail", observed=NASTY + "\x00\x0b\ud800", evidence=NASTY)))
    case = ElementTree.fromstring(text.encode("utf-8")).find(".//failure")
    assert case is not None
    assert "<c> & \ufffd[31mred" in (case.get("message") or "")
    assert "next ✓" in (case.text or "")


# --- Prometheus ---

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)$")
LABEL = re.compile(rf'({NAME})="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def parsed(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """A strict reader of the text format: every sample has HELP and TYPE above it, and no two are the same."""
    assert text.endswith("\n")
    metrics: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    current, state = "", ""
    for line in text.splitlines():
        head = re.fullmatch(rf"# (HELP|TYPE) ({NAME}) (.+)", line)
        if head and head[1] == "HELP":
            assert head[2] not in metrics
            current, state = head[2], "HELP"
        elif head:
            assert (head[2], head[3], state) == (current, "gauge", "HELP")
            metrics[current], state = {}, "TYPE"
        else:
            sample = SAMPLE.match(line)
            assert sample, line
            assert (sample[1], state) == (current, "TYPE")
            labels = tuple(LABEL.findall(sample[2] or ""))
            assert LABEL.sub("", sample[2] or "") == ""
            assert labels not in metrics[current]
            metrics[current][labels] = float(sample[3])
    return metrics


def test_prometheus_has_a_gauge_a_check() -> None:
    metrics = parsed(prometheus.to_prometheus(ALL, exit_code=3))
    states = {dict(labels)["id"]: value for labels, value in metrics["trackbed_check_status"].items()}
    assert states == {"host.skip": -1, "host.pass": 0, "host.warn": 1, "host.fail": 2, "host.error": 3}
    assert set(metrics["trackbed_check_duration_seconds"].values()) == {0.003}
    assert metrics["trackbed_checks"][(("status", "fail"),)] == 1
    assert metrics["trackbed_validation_exit_code"] == {(): 3}
    assert metrics["trackbed_validation_timestamp_seconds"] == {(): WHEN}
    ((about, one),) = metrics["trackbed_validation_info"].items()
    assert (dict(about)["release"], dict(about)["level"], one) == ("26.11", "node", 1)


def test_prometheus_escapes_labels() -> None:
    validation = report([made("pass")], release=NASTY, host="a\\", created=WHEN)
    metrics = parsed(prometheus.to_prometheus(validation, exit_code=0))
    ((about, _),) = metrics["trackbed_validation_info"].items()
    read = {name: re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], value) for name, value in about}
    assert (read["release"], read["host"]) == (NASTY, "a\\")


# --- the page ---


def test_the_page_is_one_file_that_asks_the_network_for_nothing() -> None:
    page = html.to_html(ALL)
    assert not re.findall(r"""(?:src|href|action)\s*=|url\(|@import|<script|<link|<iframe|https?:""", page)


def test_the_page_escapes_what_it_is_given() -> None:
    attack = "<script>alert(1)</script><img src=x>"
    page = html.to_html(of(made("fail", observed=attack, evidence=attack, remedy=attack, expected=attack)))
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;alert(1)") == 4


def test_the_page_has_failures_first_and_every_check() -> None:
    page = html.to_html(ALL, {"host.fail": check("host.fail", why="because of <this>", rule="when")})
    places = [page.index(f'id="host.{status}"') for status in ("error", "fail", "warn", "skip", "pass")]
    assert places == sorted(places)
    assert "1 could not be checked, 1 failed, 1 to look at" in page
    assert "because of &lt;this&gt;" in page
    assert all(f"{DOCS}#host-{status}" in page for status in get_args(Status))


def test_bars_are_on_one_scale_and_in_order() -> None:
    validation = of(
        made("pass", "a.one", milliseconds=1000), made("fail", "a.two", milliseconds=500), made("pass", "b.one"),
    )  # fmt: skip
    first, second = html.family_bars(validation)
    assert (first.words, second.words) == ("1 fail, 1 pass", "1 pass")
    assert [piece.status for piece in first.segments] == ["fail", "pass"]
    assert first.end == pytest.approx(2 * second.end, rel=0.02)
    longest, half, short = html.duration_bars(validation)
    assert (longest.name, half.name, short.name) == ("a.one", "a.two", "b.one")
    assert longest.segments[0].width == 2 * half.segments[0].width == html.BAR
    assert (longest.words, short.segments[0].width) == ("1.00 s", 2.0)


def test_only_the_longest_checks_are_drawn() -> None:
    drawn = html.duration_bars(of(*(made("pass", f"a.x{i}", milliseconds=i) for i in range(50))))
    assert [bar.name for bar in drawn] == [f"a.x{i}" for i in range(49, 49 - html.LONGEST, -1)]


def browser() -> str:
    """A browser's program; skips, and says so, where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    return found or pytest.skip(f"no browser to open the page in: none of {', '.join(names)}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_real_browser_opens_the_page(tmp_path: Path, scheme: str) -> None:
    """It must lay it out, both pictures included, without a word on its console."""
    page = tmp_path / "page.html"
    validation = of(*ALL.results, *(made("pass", check.id) for check in CHECKS))
    page.write_text(html.to_html(validation), "utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    options += ["--hide-scrollbars", "--window-size=1200,900", "--enable-logging=stderr"]
    options += [f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"]
    shot = tmp_path / "page.png"
    command = [browser(), *options, f"--screenshot={shot}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    ground, counted = pixels(shot)
    assert ground == ((255, 255, 255) if scheme == "light" else (20, 23, 28))
    assert len(counted) > 100  # text and bars, not an empty page
    red = (201, 48, 44) if scheme == "light" else (255, 107, 97)
    assert counted[red] > 100  # the failure's edge and its bar


def pixels(path: Path) -> tuple[Any, Counter[Any]]:
    """The colour of the corner, and how often each colour is there."""
    from PIL import Image

    with Image.open(path) as picture:
        colours = picture.convert("RGB")
        return colours.getpixel((2, 2)), Counter(dict((c, n) for n, c in colours.getcolors(1 << 24) or ()))


# --- the list and the docs ---


def test_the_list_counts_checks_by_proof_and_by_level() -> None:
    table = [
        check("a.one", levels=("image", "node")), check("a.two", proof="mixed"), check("b.one", proof="fixture"),
    ]  # fmt: skip
    lines = docs.to_list(table).splitlines()
    assert lines[0].split() == ["a.one", "a", "image,node", "real", "a", "title"]
    assert lines[-1] == "3 checks: 1 real, 1 mixed, 1 fixture; by level: image 1, node 3, job 2, deep 2"


def test_the_docs_are_rendered_from_the_catalogue() -> None:
    text = (ROOT / DOCS).read_text("utf-8")
    assert text == docs.to_docs(CHECKS), "trackbed validate --docs > docs/checks.md"


def test_every_record_links_to_a_place_in_the_docs() -> None:
    text = docs.to_docs(CHECKS)
    anchors = re.findall(r'<a id="([^"]+)"></a>', text)
    assert len(set(anchors)) == len(anchors)
    assert {made("pass", check.id).docs for check in CHECKS} == {f"{DOCS}#{anchor}" for anchor in anchors}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) == set(anchors)


def test_prose_in_the_docs_is_not_taken_for_html() -> None:
    text = docs.to_docs([check("a.one", why="when x < 3, `<unk>` is\n  printed", rule="< 4")])
    assert "A title. when x &lt; 3, `<unk>` is printed" in text
    assert "**Rule.** &lt; 4" in text
