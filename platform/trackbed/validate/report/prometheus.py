"""Results in Prometheus' text format, for node_exporter's textfile collector.

The file must be replaced as a whole (folders.replace does) and end in `.prom`; the format allows no time of its own for
a sample there, so when it was made is a metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trackbed.validate import SCHEMA_VERSION
from trackbed.validate.report.record import Report

# Anything above 0 wants a look, 2 and more is bad: an alert is one comparison.
CODES = {"skip": -1, "pass": 0, "warn": 1, "fail": 2, "error": 3}
Sample = tuple[dict[str, str], float]


def to_prometheus(validation: Report, *, exit_code: int) -> str:
    """The text, ending in a line feed as the format demands."""
    return "".join(_metric(*metric) for metric in _metrics(validation, exit_code))


def _metrics(validation: Report, exit_code: int) -> Iterator[tuple[str, str, list[Sample]]]:
    results = sorted(validation.results, key=lambda result: result.id)
    labels = [{"id": result.id, "family": result.family} for result in results]
    states = [float(CODES[result.status]) for result in results]
    seconds = [result.duration_ms / 1000 for result in results]
    meaning = ", ".join(f"{code} {status}" for status, code in CODES.items())
    yield "check_status", f"What a check said: {meaning}.", list(zip(labels, states, strict=True))
    yield "check_duration_seconds", "How long a check took.", list(zip(labels, seconds, strict=True))
    counts: list[Sample] = [({"status": name}, float(count)) for name, count in validation.summary.items()]
    yield "checks", "How many checks said what.", counts
    code = "Exit code: 0 good, 1 warnings and --strict, 2 a check failed, 3 the validator broke."
    yield "validation_exit_code", code, [({}, float(exit_code))]
    yield (
        "validation_timestamp_seconds",
        "When the validation ended, in seconds since 1970.",
        [({}, round(validation.created, 3))],
    )
    about = {
        "release": validation.release, "level": validation.level, "host": validation.host,
        "schema_version": str(SCHEMA_VERSION),
    }  # fmt: skip
    yield "validation_info", "What was validated, in the labels; always 1.", [(about, 1.0)]


def _metric(name: str, words: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP trackbed_{name} {_escape_help(words)}", f"# TYPE trackbed_{name} gauge"]
    lines += [f"trackbed_{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: dict[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escape_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _escape(text: str) -> str:
    return _escape_help(text).replace('"', r"\"")
