"""The page that html.py fills. Everything inserted is escaped by the template engine."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --raised: #f6f7f9; --line: #d5d9e0; --ink: #1c2128;
  --soft: #59636e; --pass: #2c8a4b; --warn: #b7791f; --fail: #c9302c; --error: #8a3ffc; --skip: #9aa4b0; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171c; --raised: #1d2128; --line: #343b45; --ink: #e6e9ee;
  --soft: #9aa4b0; --pass: #4cc274; --warn: #e0a63c; --fail: #ff6b61; --error: #b48bff; --skip: #6b7684; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; margin: 0; line-height: 1.25; } h2 { font-size: 17px; margin: 32px 0 10px; }
h2 small { font-weight: 400; font-size: 14px; }
.about { color: var(--soft); margin: 6px 0 0; }
.counts { display: flex; flex-wrap: wrap; gap: 8px; margin: 18px 0 0; padding: 0; list-style: none; }
.chip { display: inline-flex; gap: 6px; align-items: baseline; border: 1px solid var(--line); border-radius: 999px;
  padding: 1px 11px; white-space: nowrap; font-size: 13.5px; }
.chip b { color: var(--c); }
.pass { --c: var(--pass); } .warn { --c: var(--warn); } .fail { --c: var(--fail); } .error { --c: var(--error); }
.skip { --c: var(--skip); }
article { background: var(--raised); border: 1px solid var(--line); border-left: 5px solid var(--c); border-radius: 8px;
  padding: 12px 16px; margin: 0 0 12px; }
article h3 { margin: 0; font-size: 15px; display: flex; gap: 10px; align-items: center; flex-wrap: wrap; }
article > p { margin: 6px 0 8px; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: 72px 1fr; gap: 3px 12px; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
pre, code { font: 13px/1.5 ui-monospace, monospace; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 6px 0; }
details { margin-top: 8px; } summary { cursor: pointer; color: var(--soft); }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 8px 32px; }
svg { width: 100%; max-width: 620px; height: auto; font: 13px system-ui, sans-serif; } svg text { fill: var(--ink); }
svg .soft { fill: var(--soft); } rect { fill: var(--c); rx: 2px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: 5px 12px 5px 0; border-top: 1px solid var(--line); vertical-align: top; }
td.id { white-space: nowrap; } td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.seen { overflow-wrap: anywhere; min-width: 220px; }
@media (max-width: 520px) { dl { grid-template-columns: 1fr; } }
"""

TEMPLATE = (
    """<!DOCTYPE html>
{% macro chip(status, words) %}
<span class="chip {{ status }}"><b>{{ signs[status] }}</b>{{ words }}</span>
{%- endmacro %}
{% macro picture(of, label) %}
<svg viewBox="0 0 {{ of.width }} {{ of.bars|length * row }}" role="img" aria-label="{{ label }}">
{% for bar in of.bars %}
<text x="{{ of.left - 10 }}" y="{{ bar.y + 16 }}" text-anchor="end">{{ bar.name }}</text>
{% for segment in bar.segments %}
<rect class="{{ segment.status }}" x="{{ of.left + segment.x }}" y="{{ bar.y + 4 }}"
width="{{ segment.width }}" height="16">
<title>{{ segment.words }}</title></rect>
{% endfor %}
<text class="soft" x="{{ of.left + bar.end + 8 }}" y="{{ bar.y + 16 }}">{{ bar.words }}</text>
{% endfor %}
</svg>
{% endmacro %}
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ validation.host }}: {{ verdict }}</title>
<style>"""
    + STYLE
    + """</style>
</head>
<body>
<main>
<header>
<h1>{{ verdict }}</h1>
<p class="about">{{ validation.host }} · release {{ validation.release }} · level {{ validation.level }}
· {{ validation.when }}</p>
<ul class="counts">
{% for status in order if validation.summary[status] %}
<li>{{ chip(status, validation.summary[status] ~ ' ' ~ status) }}</li>
{% endfor %}
</ul>
</header>
{% if loud %}
<h2>What to look at</h2>
{% for result in loud %}
<article class="{{ result.status }}" id="{{ result.id }}">
<h3>{{ chip(result.status, result.status) }} {{ result.id }}</h3>
<p>{{ result.observed }}</p>
<dl>
{% if result.expected %}<dt>wanted</dt><dd>{{ result.expected }}</dd>{% endif %}
{% if result.remedy %}<dt>mend</dt><dd><code>{{ result.remedy }}</code></dd>{% endif %}
{% if result.source == 'fixture' %}<dt>source</dt><dd>a recorded fixture, not this machine</dd>{% endif %}
<dt>docs</dt><dd><code>{{ result.docs }}</code></dd>
</dl>
{% if result.evidence %}<details><summary>evidence</summary><pre>{{ result.evidence }}</pre></details>{% endif %}
{% set check = catalogue.get(result.id) %}
{% if check and (check.why or check.rule) %}<details><summary>why this is checked</summary>
<p>{{ check.why }}</p><p>{{ check.rule }}</p></details>{% endif %}
</article>
{% endfor %}
{% endif %}
<div class="pictures">
<section><h2>By family</h2>
{{ picture(families, 'Results by family and status') }}
</section>
<section><h2>Longest checks <small class="about">{{ '%.1f'|format(total) }} s in all, several at once</small></h2>
{{ picture(durations, 'Duration of the longest checks') }}
</section>
</div>
{% if quiet %}
<h2>Everything else</h2>
<div class="wide"><table>
<tr><th>Check</th><th>Status</th><th>Seen</th><th>Seconds</th><th>Docs</th></tr>
{% for result in quiet %}
<tr id="{{ result.id }}"><td class="id">{{ result.id }}</td><td>{{ chip(result.status, result.status) }}</td>
<td class="seen">{{ result.observed }}</td><td class="number">{{ '%.2f'|format(result.duration_ms / 1000) }}</td>
<td class="id"><code>{{ result.docs }}</code></td></tr>
{% endfor %}
</table></div>
{% endif %}
</main>
</body>
</html>
"""
)
