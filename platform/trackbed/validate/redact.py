"""Take secrets out of text before it leaves the process: reports are pasted into issues and sent to dashboards."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

REDACTED = "[redacted]"
# Whole words of a variable's name: TOKENIZERS_PARALLELISM has no token in it.
WORDS = {
    "APIKEY", "AUTH", "AUTHORIZATION", "CREDENTIAL", "CREDENTIALS", "KEY", "PASS", "PASSPHRASE", "PASSWD", "PASSWORD",
    "PAT", "PWD", "SECRET", "SECRETS", "TOKEN", "TOKENS",
}  # fmt: skip
# A shorter value is no secret worth the name, and taking it out would make holes in ordinary words.
SHORTEST = 8
# Digits, large and small letters in one piece of a path: hardly a name that a person gave.
RANDOM = re.compile(r"(?=[^/]*[A-Z])(?=[^/]*[a-z])(?=[^/]*[0-9])[^/]{12,}")
SHAPES = (
    re.compile(r"\b(?:hf|gh[pousr]|github_pat|glpat|nvapi|npm|dckr_pat|pypi)[_-][A-Za-z0-9_-]{16,}"),
    re.compile(r"\b(?:sk|xox[abprs])-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    re.compile(r"(?<=://)[^\s/:@]*:[^\s/@]+(?=@)"),
    re.compile(r"(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{8,}"),
)
ASSIGNED = re.compile(r"\b([A-Za-z][A-Za-z0-9_]*)(=)([^\s'\"]+)")
FLAG = re.compile(r"(?<![\w-])(--?[A-Za-z][A-Za-z0-9_-]*)(\s+)([^\s'\"-][^\s'\"]*)")


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text without the values of secret variables, and without what has the shape of a key."""
    for value in _secrets(os.environ if environment is None else environment):
        text = text.replace(value, REDACTED)
    for shape in SHAPES:
        text = shape.sub(REDACTED, text)
    return FLAG.sub(_assigned, ASSIGNED.sub(_assigned, text))


def is_secret(name: str) -> bool:
    """Whether a variable's name says that its value is nobody else's business."""
    return not WORDS.isdisjoint(name.upper().split("_")) and name.upper() not in ("PWD", "OLDPWD")


def _secrets(environment: Mapping[str, str]) -> list[str]:
    """Longest first: one secret may be the beginning of another."""
    values = {value for name, value in environment.items() if is_secret(name) and _worth_hiding(value)}
    return sorted(values, key=len, reverse=True)


def _worth_hiding(value: str) -> bool:
    """Long enough, and no path: that is where a secret is, not the secret. A key in base 64 may begin with / too."""
    return len(value) >= SHORTEST and (value[0] != "/" or (bool(RANDOM.search(value)) and not os.path.lexists(value)))


def _assigned(match: re.Match[str]) -> str:
    name, between, value = match.groups()
    secret = is_secret(name.lstrip("-").replace("-", "_")) and _worth_hiding(value)
    return f"{name}{between}{REDACTED}" if secret else match[0]
