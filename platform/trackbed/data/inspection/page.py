"""What the pages share: one file each, that opens anywhere, asks the network for nothing and needs no script."""

from __future__ import annotations

from typing import Any

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --raised: #f6f7f9; --line: #d5d9e0; --ink: #1c2128;
  --soft: #59636e; --learnt: #b9ecc6; --learnt-edge: #2c8a4b; --plain: #eceff3; --sign: #8a94a0; --bar: #4c78c8;
  --pad: #d5d9e0; --warn: #b7791f; --good: #2c8a4b; --mark: #c9302c; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171c; --raised: #1d2128; --line: #343b45; --ink: #e6e9ee;
  --soft: #9aa4b0; --learnt: #1d4a2b; --learnt-edge: #4cc274; --plain: #262b33; --sign: #75808c; --bar: #6d97e3;
  --pad: #343b45; --warn: #e0a63c; --good: #4cc274; --mark: #ff6b61; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; margin: 0; line-height: 1.25; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 32px 0 10px; } h2 small { font-weight: 400; font-size: 14px; }
h3 { font-size: 15px; margin: 0; overflow-wrap: anywhere; }
.about, .soft { color: var(--soft); } .about { margin: 6px 0 0; overflow-wrap: anywhere; }
article { background: var(--raised); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px;
  margin: 0 0 12px; }
article.warn { border-left: 5px solid var(--warn); } article.good { border-left: 5px solid var(--good); }
pre, code { font: 13.5px/1.9 ui-monospace, monospace; } code { overflow-wrap: anywhere; line-height: 1.5; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 10px 0 0; }
.t { background: var(--plain); border-right: 2px solid var(--raised); border-radius: 3px; padding: 1px 0 2px; }
.t:hover { outline: 2px solid var(--bar); } .t i { font-style: normal; color: var(--sign); }
.l { background: var(--learnt); border-bottom: 2px solid var(--learnt-edge); } .s { font-weight: 700; }
.p { background: repeating-linear-gradient(45deg, var(--pad) 0 4px, transparent 4px 8px); color: var(--soft);
  padding: 1px 8px; }
.legend { display: flex; flex-wrap: wrap; gap: 8px 18px; margin: 16px 0 0; padding: 0; list-style: none; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; display: block; } svg text { fill: var(--ink); }
svg .soft { fill: var(--soft); } svg rect { fill: var(--bar); } svg .pad { fill: var(--pad); }
svg.packing { max-width: 600px; } td svg { max-width: 300px; }
svg .odd { opacity: 0.65; } svg .edge { stroke: var(--mark); stroke-width: 2; stroke-dasharray: 5 3; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 8px 32px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 14px; width: 100%; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: 4px 14px 4px 0; border-top: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); gap: 12px; }
.grid div { display: flex; gap: 8px; } figure { margin: 8px 0 0; flex: 1; min-width: 0; }
figure img { width: 100%; image-rendering: pixelated; border: 1px solid var(--line); display: block; }
figcaption { color: var(--soft); font-size: 13px; }
"""

HEAD = (
    """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>"""
    + STYLE
    + """</style>
</head>
<body>
<main>
<header>
<h1>{{ title }}</h1>
<p class="about">{{ about }}</p>
"""
)
FOOT = """
</main>
</body>
</html>
"""


def render(body: str, **values: Any) -> str:
    """A page of head, body and foot; everything inserted is escaped by the template engine."""
    from jinja2 import Environment, StrictUndefined

    engine = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    return engine.from_string(HEAD + body + FOOT).render(**values)
