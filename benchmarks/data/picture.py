"""Bars as one SVG file: a picture of a benchmark for the docs, readable on a light and on a dark page."""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, LABEL, BAR, LINE = 760, 260, 380, 26
OURS, OTHERS = "#2f81f7", "#8a93a0"
STYLE = "text{font:14px system-ui,sans-serif;fill:#6b7280}.title{font-weight:600}"


def bars(path: Path, groups: dict[str, dict[str, float]], unit: str) -> None:
    """Write one group of bars for each table: what ours are called begins with Trackbed."""
    parts: list[str] = []
    top = 0
    for title, values in groups.items():
        top += LINE
        parts.append(f'<text class="title" x="0" y="{top}">{escape(title)}</text>')
        most = max(values.values())
        for name, value in values.items():
            top += LINE
            parts += _bar(top, name, value / most, f"{value:,.0f} {unit}")
        top += LINE
    box = f'width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}" role="img"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    path.write_text("\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>", ""]), "utf-8")


def _bar(top: int, name: str, share: float, said: str) -> list[str]:
    colour = OURS if name.startswith("Trackbed") else OTHERS
    width = max(1, round(BAR * share))
    return [
        f'<text x="0" y="{top}">{escape(name)}</text>',
        f'<rect x="{LABEL}" y="{top - 14}" width="{width}" height="18" rx="2" fill="{colour}"/>',
        f'<text x="{LABEL + width + 8}" y="{top}">{escape(said)}</text>',
    ]
