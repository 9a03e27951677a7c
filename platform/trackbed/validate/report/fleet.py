"""The fleet view as text, and as one page that needs nothing else: no script, no font, no address."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from trackbed.validate import figures
from trackbed.validate.site.fleet import LEAST_PERCENT, SCORE, Outlier, Strip, View

NAMED = 8
WIDTH, HEIGHT, PAD = 640, 46, 14
STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#667;--line:#ccd;--dot:#3a6ea5;--bad:#c0262d;--good:#2b7a3d}
:root{--back:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e8eaed;--soft:#9aa;--line:#445;--dot:#7fb2e5;--bad:#ff7b72;--good:#7ee787}
:root{--back:#14171a}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back)}
body{max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%}
th{width:1%;white-space:nowrap}
td,th{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
.bad{color:var(--bad)}.soft{color:var(--soft)}figure{margin:1.2rem 0}svg{width:100%;height:auto}
"""


def to_text(view: View) -> str:
    """Files that say nothing, outliers, failing checks, versions; the count last."""
    lines = [f"error  {path} {why}" for path, why in view.unread.items()]
    lines += [_outlier(strip, each) for strip, each in view.outliers]
    lines += [f"odd    {strip.name}: no figure from {named(strip.missing)}" for strip in view.strips if strip.missing]
    for check, statuses in view.failing.items():
        lines += [f"{status:6} {check}: {named(nodes)}" for status, nodes in statuses.items()]
    lines += [f"odd    release {release or 'unknown'}: {named(nodes)}" for release, nodes in view.versions.items()]
    lines += [f"note   {view.note}"] if view.note else []
    return "\n".join([*lines, _verdict(view)])


def named(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
    return ", ".join(nodes[:NAMED]) + more


def _outlier(strip: Strip, each: Outlier) -> str:
    word = "worse" if each.worse else "better"
    off = f"{each.percent:+.0f} % from the median {figures.text(strip.median, strip.unit)}"
    return f"{word:6} {each.node}: {strip.name} {figures.text(each.value, strip.unit)}, {off} (score {each.score:.1f})"


def _verdict(view: View) -> str:
    worse = len({each.node for _, each in view.outliers if each.worse})
    bad = {node for each in view.failing.values() for status in ("fail", "error") for node in each.get(status, ())}
    words = [_count(len(view.nodes), "node"), _count(len(view.strips), "figure")]
    words += [f"{worse} worse than the others", f"{len(bad)} with failing checks"]
    return ", ".join(words + ([f"{_count(len(view.unread), 'file')} unread"] if view.unread else []))


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def to_html(view: View) -> str:
    """One self-contained page: the verdict, the tables, and a strip of dots for each figure."""
    body = "".join(_body(view))
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
    return (
        f'<!doctype html><html lang="en"><head>{head}<title>Trackbed fleet</title></head><body>{body}</body></html>\n'
    )


def _body(view: View) -> Iterator[str]:
    yield f"<h1>Trackbed fleet</h1><p>{_safe(_verdict(view))}</p>"
    if view.note:
        yield f'<p class="soft">{_safe(view.note)}</p>'
    yield from _table("Files that are no validation", [(path, why) for path, why in view.unread.items()])
    rows = [_outlier(strip, each).split(None, 1) for strip, each in view.outliers]
    yield from _table("Outliers", [(word, text) for word, text in rows])
    failing = [
        (f"{status} {check}", named(nodes)) for check, each in view.failing.items() for status, nodes in each.items()
    ]
    yield from _table("Checks that are not good", failing)
    yield from _table("Releases", [(release or "unknown", named(nodes)) for release, nodes in view.versions.items()])
    if view.strips:
        yield "<h2>Figures</h2>"
        yield '<p class="soft">A dot is a node, the line the median, the band what may be: '
        yield f"{SCORE:g} deviations or {LEAST_PERCENT:g} % to either side. The left end is not zero.</p>"
        yield from map(picture, view.strips)


def _table(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    if rows:
        cells = "".join(f"<tr><th>{_safe(left)}</th><td>{_safe(right)}</td></tr>" for left, right in rows)
        yield f"<h2>{_safe(title)}</h2><table>{cells}</table>"


def picture(strip: Strip) -> str:
    """A figure's strip: every node's value on one line, outliers in red under their names."""
    # With all of the band in it, a fleet that is alike looks alike.
    low = min(*strip.values.values(), strip.median - strip.reach)
    high = max(*strip.values.values(), strip.median + strip.reach)
    odd = {each.node: each for each in strip.outliers}

    def at(value: float) -> float:
        return PAD + (WIDTH - 2 * PAD) * (value - low) / (high - low)

    dots = [
        _dot(at(value), node, figures.text(value, strip.unit), odd.get(node)) for node, value in strip.values.items()
    ]
    middle = f'<line x1="{at(strip.median):.1f}" x2="{at(strip.median):.1f}" y1="16" y2="38" stroke="currentColor"/>'
    left, right = at(strip.median - strip.reach), at(strip.median + strip.reach)
    band = f'<rect x="{left:.1f}" width="{right - left:.1f}" y="18" height="18" fill="var(--line)"/>'
    axis = f'<line x1="{PAD}" x2="{WIDTH - PAD}" y1="27" y2="27" stroke="var(--line)"/>'
    labels = f'<text x="{PAD}" y="{HEIGHT}">{_safe(figures.text(low, strip.unit))}</text>'
    labels += f'<text x="{WIDTH - PAD}" y="{HEIGHT}" text-anchor="end">{_safe(figures.text(high, strip.unit))}</text>'
    drawn = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 4}" role="img" font-size="11" fill="currentColor">{band}{axis}{middle}'
    )
    missing = f'; <span class="bad">no figure from {_safe(named(strip.missing))}</span>' if strip.missing else ""
    better = "more" if strip.better == "higher" else "less"
    said = f"median {figures.text(strip.median, strip.unit)} of {len(strip.values)} nodes, {better} is better"
    caption = f"<figcaption><b>{_safe(strip.name)}</b> <span class=soft>{_safe(said)}</span>{missing}</figcaption>"
    return f"<figure>{caption}{drawn}{''.join(dots)}{labels}</svg></figure>"


def _dot(x: float, node: str, value: str, outlier: Outlier | None) -> str:
    title = f"<title>{_safe(node)}: {_safe(value)}</title>"
    if not outlier:
        return f'<circle cx="{x:.1f}" cy="27" r="4" fill="var(--dot)" fill-opacity=".6">{title}</circle>'
    color = "var(--bad)" if outlier.worse else "var(--good)"
    side = "start" if x < WIDTH / 2 else "end"
    name = f'<text x="{x:.1f}" y="12" text-anchor="{side}" fill="{color}">{_safe(node)}</text>'
    return f'<circle cx="{x:.1f}" cy="27" r="6" fill="{color}">{title}</circle>{name}'


def _safe(text: str) -> str:
    return html.escape(text, quote=True)
