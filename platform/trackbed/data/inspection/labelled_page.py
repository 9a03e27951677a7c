"""Labelled samples as pages: a grid of what the model sees, and the figures of the set."""

from __future__ import annotations

from typing import Any

from trackbed.data.config import AudioConfig, SampleConfig
from trackbed.data.inspection.labelled import Seen
from trackbed.data.inspection.page import render
from trackbed.data.inspection.stats_page import FINDINGS

GRID = """
</header>
<h2>Samples</h2>
<div class="grid">
{% for sample in seen %}
<article class="sample"><h3>{{ sample.label }}</h3><p class="about">{{ sample.where }}</p>
<div>
{% for what, uri in sample.pictures.items() %}
<figure><img alt="{{ what }}" src="{{ uri }}"><figcaption>{{ what }}</figcaption></figure>
{% endfor %}
</div></article>
{% endfor %}
</div>
"""

FIGURES = (
    FINDINGS
    + """
{% for name, part in parts.items() %}
<h2>{{ name }} <small class="about">{{ part.samples }} samples, {{ part.left_out|length }} left out</small></h2>
<div class="wide"><table><tr><th>Class</th><th class="n">Samples</th><th></th></tr>
{% for each in part.classes %}
<tr><td>{{ each.name }}</td><td class="n">{{ each.samples }}</td>
<td><svg viewBox="0 0 300 12" role="img" aria-label="{{ each.samples }}">
<rect x="0" y="0" height="12" width="{{ (300 * each.samples / most[name])|round(1) }}"></rect></svg></td></tr>
{% endfor %}
</table></div>
<p class="about">Bytes: min {{ part.bytes.min }}, median {{ part.bytes.median }}, max {{ part.bytes.max }}. Sizes:
{% for each in part.sizes %}{{ each.size }} ({{ each.samples }}){{ '' if loop.last else '; ' }}{% endfor %}</p>
{% for line in part.left_out[:10] %}<p><code>left out: {{ line }}</code></p>
{% endfor %}
{% endfor %}
"""
)


def preview_html(seen: list[Seen], config: SampleConfig, part: str, job: str) -> str:
    about = "As they lie there, as the first epoch trains on them, and as they are evaluated."
    if isinstance(config, AudioConfig):
        about = "Log-mel spectrograms, low tones below: as the first epoch trains on them, and as they are evaluated."
    return render(GRID, title=f"{job}: {part} as the model sees it", about=about, seen=seen)


def stats_html(found: dict[str, Any], job: str) -> str:
    parts = found["parts"]
    most = {name: max([each["samples"] for each in part["classes"]] + [1]) for name, part in parts.items()}
    about = "Samples by class, without those that a scan found bad."
    return render(FIGURES, title=f"{job}: the data", about=about, findings=found["findings"], parts=parts, most=most)
