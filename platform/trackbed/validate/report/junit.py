"""Results as JUnit XML, which every CI server shows: a suite a family, a case a check."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from trackbed.validate import Result
from trackbed.validate.report.record import Report

# XML 1.0 has no way to write these, not even escaped; a terminal's colours begin with one.
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
TAGS = {"fail": "failure", "error": "error", "skip": "skipped"}


def to_junit(validation: Report, *, strict: bool = False) -> str:
    """The XML. A warning is a case that passed and says so in its output; strict makes it a failure."""
    root = ElementTree.Element("testsuites", {"name": "trackbed validate", **_counts(validation.results, strict)})
    for family, results in validation.families.items():
        where = {"hostname": _clean(validation.host), "timestamp": validation.when.rstrip("Z")}
        suite = ElementTree.SubElement(root, "testsuite", {"name": family, **where, **_counts(results, strict)})
        properties = ElementTree.SubElement(suite, "properties")
        for name in ("release", "level"):
            ElementTree.SubElement(properties, "property", name=name, value=_clean(getattr(validation, name)))
        for result in results:
            _case(suite, result, strict)
    ElementTree.indent(root)
    # Not the library's own first line: up to Python 3.10 that names the locale's encoding, and the file is UTF-8.
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ElementTree.tostring(root, encoding='unicode')}\n"


def _case(suite: ElementTree.Element, result: Result, strict: bool) -> None:
    seconds = f"{result.duration_ms / 1000:.3f}"
    case = ElementTree.SubElement(
        suite, "testcase", classname=f"trackbed.{result.family}", name=result.id, time=seconds
    )
    tag = _tag(result, strict)
    if tag:
        ElementTree.SubElement(case, tag, message=_clean(result.observed), type=result.status).text = _body(result)
    else:
        ElementTree.SubElement(case, "system-out").text = f"{result.status}: {_clean(result.observed)}\n{_body(result)}"


def _tag(result: Result, strict: bool) -> str:
    return "failure" if strict and result.status == "warn" else TAGS.get(result.status, "")


def _body(result: Result) -> str:
    """What a person needs, a line each; the record's own names."""
    source = "a recorded fixture, not this machine" if result.source == "fixture" else ""
    pairs = [
        ("wanted", result.expected), ("mend", result.remedy), ("evidence", result.evidence), ("source", source),
        ("docs", result.docs),
    ]  # fmt: skip
    return "".join(f"{name}: {_clean(text)}\n" for name, text in pairs if text)


def _counts(results: Sequence[Result], strict: bool) -> dict[str, str]:
    tags = [_tag(result, strict) for result in results]
    seconds = sum(result.duration_ms for result in results) / 1000
    return {
        "tests": str(len(results)),
        "failures": str(tags.count("failure")),
        "errors": str(tags.count("error")),
        "skipped": str(tags.count("skipped")),
        "time": f"{seconds:.3f}",
    }


def _clean(text: str) -> str:
    return FORBIDDEN.sub("\ufffd", text)
