"""When two versions are the same: by a pin's rule, or for what is declared and what is loaded."""

from __future__ import annotations

import re

RULES = ("exact", "prefix", "at-least")


def matches(rule: str, wanted: str, found: str) -> bool:
    """Whether a version satisfies a pin: exact, prefix (2.13.0 admits 2.13.0+cpu), at-least."""
    if rule == "exact":
        return found == wanted or plain(found) == wanted
    if rule == "prefix":
        return found == wanted or found.startswith((f"{wanted}.", f"{wanted}+", f"{wanted}-"))
    return numbers(found) >= numbers(wanted)


def agree(rule: str, said: str, found: str, reads: int = 0) -> bool:
    """Whether a declaration tells the truth about what is loaded, as far as both of them say.

    12.1.1.009 and 12.1 do, 8.6.1.6+cuda12.0 and 8.6.1, 3.11 and 3.11.2. Of an at-least pin the loaded one may be newer:
    NVIDIA's images say 4.1.4 of an Open MPI that says 4.1.5.
    """
    one, other = cut(plain(said), reads), cut(plain(found), reads)
    if rule == "at-least":
        return numbers(other) >= numbers(one)
    short, long = sorted((one, other), key=len)
    return long == short or long.startswith((f"{short}.", f"{short}-"))


def cut(version: str, count: int) -> str:
    """The first `count` numbers of a version, all of it for 0: a library says 8.6.1 of the package 8.6.1.6."""
    return version if not count else ".".join(re.findall(r"\d+", version)[:count])


def plain(version: str) -> str:
    """Without what was built for (`+cuda12.0`), and without a Debian package's own revision (`-1`)."""
    return re.sub(r"-\d+$", "", version.partition("+")[0])


def numbers(version: str) -> list[int]:
    """The numbers that a version begins with; none of a text that only mentions some."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return [int(number) for number in match[0].split(".")] if match else []
