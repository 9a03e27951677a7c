"""The list of checks, and the page of the docs that explains them: both from the catalogue, none by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trackbed.validate import LEVELS, Check, Proof, docs_link
from trackbed.validate.runner import LONGEST

PROOFS: dict[Proof, str] = {
    "real": "really exercised by the tests",
    "mixed": "in part by recordings",
    "fixture": "by recordings of the hardware's output",
}
HEAD = """# Checks

<!-- Rendered from the catalogue by `trackbed validate --docs > docs/checks.md`: edit the check, not this. -->

Each check measures something and judges it by one rule. It **passes**, **warns** (it costs you something), **fails**
(a job would break, hang or be wrong), **skips** with a reason (there is nothing to check here), or is an **error** (it
could not be checked, which is never a pass). [validation.md](validation.md) explains levels, exit codes and formats.
"""


def to_list(checks: Sequence[Check]) -> str:
    """One line a check and the counts, for a terminal."""
    width = max((len(check.id) for check in checks), default=0)
    kinds = max((len(check.family) for check in checks), default=0)
    lines = [
        f"{check.id:{width}}  {check.family:{kinds}}  {','.join(check.levels):19}  {check.proof:7}  {check.title}"
        for check in checks
    ]
    return "\n".join([*lines, counts(checks)])


def counts(checks: Sequence[Check]) -> str:
    """How many there are, how they are proved, and how many each level runs."""
    proofs = Counter(check.proof for check in checks)
    by_proof = ", ".join(f"{proofs[proof]} {proof}" for proof in PROOFS)
    by_level = ", ".join(f"{level} {sum(level in check.levels for check in checks)}" for level in LEVELS)
    return f"{len(checks)} checks: {by_proof}; by level: {by_level}"


def to_docs(checks: Sequence[Check]) -> str:
    """The page, families in the catalogue's order."""
    families = list(dict.fromkeys(check.family for check in checks))
    proofs = Counter(check.proof for check in checks)
    proved = "; ".join(f"{proofs[name]} {words}" for name, words in PROOFS.items() if proofs[name])
    parts = [HEAD, f"{len(checks)} checks: {proved}.\n", *(_family(name, checks) for name in families)]
    return "\n".join(parts)


def _family(name: str, checks: Sequence[Check]) -> str:
    own = [check for check in checks if check.family == name]
    rows = [f"| [`{check.id}`](#{_anchor(check)}) | {check.title} | {', '.join(check.levels)} |\n" for check in own]
    table = "| Check | What | Levels |\n|---|---|---|\n" + "".join(rows)
    return f"## {name}\n\n{table}\n" + "\n".join(map(_section, own))


def _section(check: Check) -> str:
    """One check; the anchor is written out, for a heading's own would lose the point in an id."""
    proof = f"Proved: {PROOFS[check.proof]}. Levels: {', '.join(check.levels)}. Deadline: {_deadline(check)}."
    parts = [f'<a id="{_anchor(check)}"></a>\n\n### {check.id}', f"{_first_upper(check.title)}. {_plain(check.why)}"]
    parts += [f"**Rule.** {_plain(check.rule)}"] if check.rule else []
    return "\n\n".join(part.rstrip() for part in [*parts, proof]) + "\n"


def _deadline(check: Check) -> str:
    cut = [level for level, most in LONGEST.items() if level in check.levels and check.deadline > most]
    return f"{check.deadline:g} s" + (f", {LONGEST[cut[0]]:g} s at level {' and '.join(cut)}" if cut else "")


def _anchor(check: Check) -> str:
    return docs_link(check.id).partition("#")[2]


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _plain(text: str) -> str:
    """Prose whose `<` is not taken for HTML, except inside code."""
    pieces = " ".join(text.split()).split("`")
    return "`".join(piece if index % 2 else piece.replace("<", "&lt;") for index, piece in enumerate(pieces))
