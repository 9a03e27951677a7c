"""JSON Schema of a result and of a whole validation, for programs that read `trackbed validate --json`.

A test holds it against the Result class and against real output. A change that an old reader would not survive raises
SCHEMA_VERSION; a new field that may be ignored does not.
"""

from __future__ import annotations

from typing import Any, get_args

from trackbed.validate import DOCS, LEVELS, SCHEMA_VERSION, Source, Status

TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}


def schema() -> dict[str, Any]:
    """The document's schema; the record's is its `$defs.result`."""
    properties = {
        "schema_version": {"const": SCHEMA_VERSION},
        "release": {**TEXT, "description": "the release this machine was held against"},
        "host": {**TEXT, "description": "where it ran"},
        "level": {"enum": list(LEVELS), "description": "which checks ran"},
        "created": {
            **TEXT, "description": "when it ended, in UTC", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$",
        },
        "results": {"type": "array", "items": {"$ref": "#/$defs/result"}, "description": "worst first"},
        "summary": _object({status: COUNT for status in get_args(Status)}),
    }  # fmt: skip
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:trackbed:validation:{SCHEMA_VERSION}",
        "title": "What `trackbed validate --json` prints",
    }
    return {**head, **_object(properties), "$defs": {"result": {"title": "One check's record", **_object(_record())}}}


def _record() -> dict[str, Any]:
    return {
        "id": {**TEXT, "pattern": r"^[a-z0-9]+(-[a-z0-9]+)*\.[a-z0-9]+(-[a-z0-9]+)*$", "description": "never changes"},
        "family": {**TEXT, "description": "the id before its point"},
        "status": {"enum": list(get_args(Status)), "description": "error: it could not be checked, which is no pass"},
        "observed": {**TEXT, "description": "what was seen, with the measured number"},
        "expected": {**TEXT, "description": "what is wanted; may be empty"},
        "evidence": {**TEXT, "description": "for a bug report; may be empty"},
        "remedy": {**TEXT, "description": "how to mend it; empty when there is nothing to mend"},
        "source": {"enum": list(get_args(Source)), "description": "fixture: of a recording, not of this machine"},
        "duration_ms": COUNT,
        "host": TEXT,
        "schema_version": {"const": SCHEMA_VERSION},
        "docs": {**TEXT, "pattern": rf"^{DOCS.replace('.', '[.]')}#", "description": "where it is explained"},
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": True,
    }  # fmt: skip
