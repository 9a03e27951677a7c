"""The figures of a data set as a page, with pictures drawn as SVG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trackbed.data.inspection.page import render

WIDE, HIGH, FOOT = 460, 150, 34  # a picture, in its own units
ROW = 26
BAR = 240
LEFT = 130

FINDINGS = """
<p class="about">{{ findings|length or 'No' }} finding{{ '' if findings|length == 1 else 's' }}</p>
</header>
{% if findings %}<h2>What to look at</h2>{% endif %}
{% for found in findings %}
<article class="warn" id="{{ found.id }}-{{ found.part }}">
<h3>{{ found.what }}</h3>
<p class="about">{{ found.means[0]|upper }}{{ found.means[1:] }}. <b>Mend:</b> {{ found.remedy }}.</p>
{% if found.groups %}
<div class="wide"><table><tr><th>Most repeated</th><th>There</th><th>Begins</th></tr>
{% for group in found.groups[:5] %}
<tr><td><code>{{ group.where }}</code></td><td class="n">{{ group.count }} times</td><td>{{ group.text }}</td></tr>
{% endfor %}
</table></div>
{% endif %}
{% if found.named %}
<details><summary>the first {{ found.named|length }} of {{ found.count }}</summary>
<div class="wide"><table><tr><th>Sample</th><th>Is like</th><th>Alike</th><th>Begins</th></tr>
{% for pair in found.named %}
<tr><td><code>{{ pair.where }}</code></td><td><code>{{ pair.same_as }}</code></td>
<td class="n">{{ '%.0f'|format(100 * pair.similarity) }} %</td><td>{{ pair.text }}</td></tr>
{% endfor %}
</table></div></details>
{% endif %}
</article>
{% endfor %}
"""

BODY = (
    """
{% macro lengths(of, label) %}
<svg viewBox="0 0 {{ wide }} {{ high + foot }}" role="img" aria-label="{{ label }}">
{% for bar in of.bars %}
<rect x="{{ bar.x }}" y="{{ bar.y }}" width="{{ bar.width }}" height="{{ bar.height }}">
<title>{{ bar.words }}</title></rect>
{% endfor %}
{% if of.edge is not none %}
<line class="edge" x1="{{ of.edge }}" x2="{{ of.edge }}" y1="0" y2="{{ high }}"><title>row</title></line>
{% endif %}
<text class="soft" x="0" y="{{ high + 14 }}">0</text>
<text class="soft" x="{{ wide }}" y="{{ high + 14 }}" text-anchor="end">{{ of.most }} tokens</text>
<text class="soft" x="0" y="{{ high + 30 }}">{{ of.words }}</text>
</svg>
{% endmacro %}
"""
    + FINDINGS
    + """
<h2>Lengths <small class="about">tokens a sample; the dashed line is data.row_length</small></h2>
<div class="pictures">
{% for name, picture in pictures.items() %}
<section><h3>{{ name }}</h3>{{ lengths(picture, 'Lengths of ' ~ name) }}</section>
{% endfor %}
</div>
<h2>Padding of train <small class="about">share of each row that is not data</small></h2>
<svg viewBox="0 0 {{ wide }} {{ packing|length * row }}" role="img" aria-label="Padding" class="packing">
{% for bar in packing %}
<text x="{{ left - 8 }}" y="{{ bar.y + 15 }}" text-anchor="end">{{ bar.name }}</text>
<rect class="pad" x="{{ left }}" y="{{ bar.y + 3 }}" width="{{ full }}" height="17">
<title>{{ bar.words }}</title></rect>
<rect x="{{ left }}" y="{{ bar.y + 3 }}" width="{{ bar.width }}" height="17"><title>{{ bar.words }}</title></rect>
<text class="soft" x="{{ left + full + 8 }}" y="{{ bar.y + 15 }}">{{ bar.words }}</text>
{% endfor %}
</svg>
<h2>Figures</h2>
<div class="wide"><table><tr><th></th>{% for name in parts %}<th class="n">{{ name }}</th>{% endfor %}</tr>
{% for name, values in table %}
<tr><td>{{ name }}</td>{% for value in values %}<td class="n">{{ value }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
"""
)


@dataclass(frozen=True)
class Bar:
    """A bar of a picture; `name` is written beside it, `words` are shown on hovering."""

    x: float
    y: float
    width: float
    height: float
    words: str
    name: str = ""


@dataclass(frozen=True)
class Histogram:
    """Bars, the place of the row's length (None when it lies outside), the largest number, and the quantiles."""

    bars: list[Bar]
    edge: float | None
    most: int
    words: str


def to_html(found: dict[str, Any], job: str) -> str:
    parts = found["parts"]
    return render(
        BODY,
        title=f"{job}: the data",
        about="Samples as they are trained on, after their tokenizer and chat template.",
        findings=found["findings"],
        parts=list(parts),
        pictures={name: length_bars(part["lengths"], part["packing"]["row_length"]) for name, part in parts.items()},
        packing=packing_bars(parts["train"]["packing"]),
        table=rows(parts),
        wide=WIDE,
        high=HIGH,
        foot=FOOT,
        row=ROW,
        left=LEFT,
        full=BAR,
    )


def length_bars(lengths: dict[str, Any], row_length: int) -> Histogram:
    bars = lengths["histogram"]
    # The row's length is shown where it is not far beyond what there is.
    most = row_length if bars[-1]["to"] < row_length <= 3 * bars[-1]["to"] else bars[-1]["to"]
    across, up = WIDE / (most + 1), (HIGH - 4) / max(bar["samples"] for bar in bars)
    drawn = [_length_bar(bar, across, up) for bar in bars if bar["samples"]]
    edge = round(min(row_length * across, WIDE - 1), 1) if row_length <= most else None
    words = ", ".join(f"{name} {lengths[name]}" for name in ("min", "median", "mean", "p95", "p99", "max"))
    return Histogram(drawn, edge, most, words)


def _length_bar(bar: dict[str, int], across: float, up: float) -> Bar:
    height = max(1.0, bar["samples"] * up)
    width = max(1.0, (bar["to"] - bar["from"] + 1) * across - 1)
    words = f"{bar['from']} to {bar['to']} tokens: {bar['samples']} samples"
    return Bar(round(bar["from"] * across, 1), round(HIGH - height, 1), round(width, 1), round(height, 1), words)


def packing_bars(packing: dict[str, Any]) -> list[Bar]:
    said = [(f"packed, {each['row_length']}", each["padding"]) for each in packing["packed"]]
    unpacked = packing["unpacked"]
    said.append((f"{unpacked['rows_at_once']} at once, unpacked", unpacked["padding"]))
    return [
        Bar(LEFT, index * ROW, round(BAR * (1 - padding), 1), 17, f"{padding:.1%} padding", name)
        for index, (name, padding) in enumerate(said)
    ]


def rows(parts: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """The table of figures: a name, and its value for each part."""
    simple = ("samples", "tokens", "supervised_tokens", "dropped", "truncated")
    table = [(name.replace("_", " "), [f"{part[name]:,}" for part in parts.values()]) for name in simple]
    table.append(("supervised share", [f"{part['supervised_share']:.1%}" for part in parts.values()]))
    for name, key in (("tokens a sample", "lengths"), ("supervised a sample", "supervised"), ("turns", "turns")):
        table.append((f"{name}: min, median, mean, max", [_span(part[key]) for part in parts.values()]))
    roles = [", ".join(f"{role} {count:,}" for role, count in part["roles"].items()) for part in parts.values()]
    return [*table, ("turns by role", roles), ("format", [part["format"] for part in parts.values()])]


def _span(values: dict[str, Any]) -> str:
    return ", ".join(str(values[name]) for name in ("min", "median", "mean", "max"))
