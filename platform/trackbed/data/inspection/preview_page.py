"""The preview as a page: tokens with their borders, what is learnt underlined in green, ids on hovering."""

from __future__ import annotations

from dataclasses import dataclass

from trackbed.data.inspection.page import render
from trackbed.data.inspection.preview import Preview, Row

WIDE = 1000  # of the row's picture, in its own units

BODY = """
{% macro tokens(sample) %}
<pre class="tokens">
{%- for piece in sample.pieces %}
<span class="t{{ ' l' if piece.learnt }}{{ ' s' if piece.special }}" title="{{ piece.about }}">
{%- for sign, text in piece.runs %}{% if sign %}<i>{{ text }}</i>{% else %}{{ text }}{% endif %}{% endfor %}
</span>
{%- endfor %}
</pre>
{% endmacro %}
<ul class="legend">
<li><span class="t l">learnt</span> the model is trained to say this</li>
<li><span class="t">not learnt</span> it only reads this</li>
<li><span class="t s">special</span> a special token</li>
<li><span class="t"><i>·</i></span> space, <span class="t"><i>↵</i></span> newline, <span class="t"><i>→</i></span> tab,
<span class="t"><i>⋯</i></span> part of a character</li>
<li class="soft">hover over a token for its id and position</li>
</ul>
</header>
<h2>Samples <small class="about">{{ view.samples|length }} of {{ view.of }}</small></h2>
{% for sample in view.samples %}
<article class="sample"><h3>{{ sample.where }}</h3>
<p class="about">{{ sample.about }}</p>
{{ tokens(sample) }}</article>
{% endfor %}
{% if view.row %}
<h2>One packed row <small class="about">{{ view.row.about }}; no sample sees another</small></h2>
<svg viewBox="0 0 {{ wide }} 34" role="img" aria-label="The samples of the row and its padding">
{% for block in blocks %}
<rect class="{{ block.look }}" x="{{ block.x }}" y="2" width="{{ block.width }}" height="28">
<title>{{ block.words }}</title></rect>
{% endfor %}
</svg>
{% for sample in view.row.samples %}
<article class="packed"><h3>{{ loop.index }}. {{ sample.where }}</h3>
<p class="about">{{ sample.about }}</p>
{{ tokens(sample) }}</article>
{% endfor %}
{% if view.row.padding %}
<p><span class="p">{{ view.row.padding }} tokens of padding</span></p>
{% endif %}
{% endif %}
"""


@dataclass(frozen=True)
class Block:
    """A sample, or the padding, in the picture of the row."""

    x: float
    width: float
    look: str
    words: str


def to_html(view: Preview, job: str) -> str:
    title = f"{job}: {view.part} as the model sees it"
    about = "Tokens in the order of training; only what is marked as learnt counts for the loss."
    blocks = row_blocks(view.row) if view.row else []
    return render(BODY, title=title, about=about, view=view, blocks=blocks, wide=WIDE)


def row_blocks(row: Row) -> list[Block]:
    blocks, x = [], 0.0
    scale = WIDE / max(row.width, row.tokens)
    for number, sample in enumerate(row.samples, start=1):
        width = len(sample.pieces) * scale
        words = f"{number}. {sample.where}: {len(sample.pieces)} tokens"
        blocks.append(Block(round(x, 1), round(max(1, width - 2), 1), "" if number % 2 else "odd", words))
        x += width
    if row.padding:
        words = f"padding: {row.padding} tokens"
        blocks.append(Block(round(x, 1), round(row.padding * scale, 1), "pad", words))
    return blocks
