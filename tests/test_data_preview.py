"""The preview shows what is trained on, and marks exactly what is learnt: on a terminal, in a log, on a page."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from conftest import Command, conversation, write_jsonl
from trackbed.cli import inspected
from trackbed.cli.console import stages
from trackbed.data.chat.batches import IGNORED, Batches
from trackbed.data.chat.encode import load_tokenizer
from trackbed.data.chat.prepare import prepare
from trackbed.data.chat.prepared import Prepared
from trackbed.data.chat.recipe import Recipe
from trackbed.data.config import DataConfig
from trackbed.data.inspection import preview_page
from trackbed.data.inspection.preview import Choice, Preview, Row, Shown, preview, spread
from trackbed.data.inspection.shown import BORDER, Piece, marked, pieces, runs
from trackbed.data.order import Share
from trackbed.errors import DataError

MakeJob = Callable[..., Path]
ATTACK = "<script>alert(1)</script><img src=x onerror=y>\x1b[31m"
NASTY = f"{ATTACK} [bold]│⟦·⟧ ↵ ⋯ \\ né 漢字 🙂\u202e\ttab  two\r\nend"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACKBED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    return load_tokenizer(tiny_model)


def turns(*contents: str) -> dict[str, Any]:
    roles = ("user", "assistant") * len(contents)
    return {"messages": [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]}


def config(**values: Any) -> DataConfig:
    return DataConfig(**{"train": "t", "heldout": "h", "max_length": 512, "row_length": 1024, **values})


def made(tmp_path: Path, model: Path, records: list[Any], **values: Any) -> Prepared:
    return prepare(Recipe.of(write_jsonl(tmp_path / "chat.jsonl", records), model, config(**values)), workers=1)


@pytest.fixture
def prepared(tmp_path: Path, tiny_model: Path) -> Prepared:
    records = [conversation(index) for index in range(20)]
    return made(tmp_path, tiny_model, [*records, turns("a?", "one", NASTY, NASTY), turns(NASTY, "yes")])


@pytest.fixture
def view(prepared: Prepared, tiny_model: Path) -> Preview:
    return preview(prepared, tiny_model, config(), Choice(samples=22))


# --- the text of tokens ---


def test_texts_of_tokens_are_together_the_decoded_whole(prepared: Prepared, tokenizer: Any) -> None:
    for sample in prepared:
        shown = pieces(sample.ids, sample.supervised, tokenizer)
        assert "".join(piece.text for piece in shown) == tokenizer.decode(sample.ids)
        assert [piece.id for piece in shown] == sample.ids.tolist()
        assert [piece.learnt for piece in shown] == sample.supervised.tolist()


def test_a_tokenizer_that_drops_the_space_of_a_first_word_keeps_its_spaces() -> None:
    """As those with a metaspace do: a token decoded on its own has no space, behind another it has."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.WordLevel({"\u2581one": 0, "\u2581two": 1, "<unk>": 2}, unk_token="<unk>"))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw)
    assert tokenizer.decode([1]) == "two"
    shown = pieces(np.array([0, 1, 1]), np.ones(3, dtype=np.bool_), tokenizer)
    assert [piece.text for piece in shown] == ["one", " two", " two"]


def test_special_tokens_are_text_and_known_as_special(prepared: Prepared, tokenizer: Any) -> None:
    shown = pieces(prepared[0].ids, prepared[0].supervised, tokenizer)
    assert {piece.text for piece in shown if piece.special} == {"<|im_start|>", "<|im_end|>"}
    assert [piece.text for piece in shown if piece.learnt][-1] == "<|im_end|>"


def test_what_cannot_be_seen_is_shown() -> None:
    shown = "".join(text for _, text in runs("a b\n\tc\r\x1b[31m\u202e\ud800·│"))
    assert shown == r"a·b↵" + "\n" + r"→c␍\x1b[31m\u202e\ud800\xb7\u2502"


# --- the mask: one truth, three forms ---


class Tokens(HTMLParser):
    """The tokens of a page: for each article of a class, (title, learnt, text) of its spans."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.articles: list[tuple[str, list[tuple[str, bool, str]]]] = []
        self.depth = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "article":
            self.articles.append((found["class"], []))
        if tag == "span" and "title" in found and self.articles:
            self.articles[-1][1].append((found["title"], "l" in found["class"].split(), ""))
            self.depth = 1

    def handle_endtag(self, tag: str) -> None:
        self.depth = 0 if tag == "span" else self.depth

    def handle_data(self, data: str) -> None:
        if self.depth:
            title, learnt, text = self.articles[-1][1][-1]
            self.articles[-1][1][-1] = (title, learnt, text + data)

    def of(self, kind: str) -> list[list[tuple[str, bool, str]]]:
        return [tokens for name, tokens in self.articles if name == kind]


def test_the_page_marks_exactly_what_is_supervised(prepared: Prepared, view: Preview) -> None:
    shown = Tokens(preview_page.to_html(view, "job")).of("sample")
    assert len(shown) == len(prepared) == 22
    for tokens, sample, seen in zip(shown, prepared, view.samples, strict=True):
        assert [learnt for _, learnt, _ in tokens] == sample.supervised.tolist()
        assert [title.split(", ")[0] for title, _, _ in tokens] == [f"token {id}" for id in sample.ids]
        assert [title.split(", ")[1] for title, _, _ in tokens] == [f"position {at}" for at in range(len(sample.ids))]
        assert [text for _, _, text in tokens] == [piece.shown for piece in seen.pieces]


def of_log(text: str) -> list[bool]:
    """Which tokens of the form for logs are learnt."""
    inside, masks = False, []
    for token in text.split(BORDER):
        inside = (inside or "⟦" in token) and not token.startswith("⟧")
        masks.append(inside)
        inside = inside and not token.endswith("⟧")
    return masks


def test_the_form_for_logs_marks_the_same_tokens(prepared: Prepared, view: Preview) -> None:
    for sample, seen in zip(prepared, view.samples, strict=True):
        assert of_log(marked(seen.pieces)) == sample.supervised.tolist()


def test_colours_mark_the_same_tokens(prepared: Prepared, view: Preview) -> None:
    for sample, seen in zip(prepared, view.samples, strict=True):
        text = inspected.coloured(seen.pieces)
        styles = [str(span.style).removesuffix(" bold") for span in text.spans]
        assert [style in inspected.LEARNT for style in styles] == sample.supervised.tolist()
        assert all(one != other for one, other in pairwise(styles))


@pytest.mark.parametrize("colour", ["terminal", "NO_COLOR", "log"])
def test_colours_are_for_terminals_that_want_them(view: Preview, monkeypatch: pytest.MonkeyPatch, colour: str) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if colour == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    inspected.show_preview(view, Console(file=file, force_terminal=colour != "log", color_system="truecolor"))
    if colour == "terminal":
        assert "\x1b[" in file.getvalue()
        assert "⟦" not in file.getvalue().replace("⟦learnt⟧", "")
    else:
        assert "\x1b" not in file.getvalue()
        assert marked(view.samples[0].pieces) in file.getvalue()


def test_the_row_is_the_first_that_training_takes(prepared: Prepared, view: Preview) -> None:
    (batch,) = Batches(prepared, config(), Share(0, 1, 1)).step(0).batches
    assert view.row
    ids = [piece.id for sample in view.row.samples for piece in sample.pieces]
    assert ids == batch.ids[0].tolist()
    learnt = np.array([piece.learnt for sample in view.row.samples for piece in sample.pieces])
    assert (batch.labels[0] != IGNORED).tolist() == [*learnt[1:].tolist(), False]
    assert [len(sample.pieces) for sample in view.row.samples] == np.bincount(batch.segments[0])[1:].tolist()
    assert view.row.padding == 1024 - len(ids) > 0
    packed = Tokens(preview_page.to_html(view, "job")).of("packed")
    assert [len(tokens) for tokens in packed] == [len(sample.pieces) for sample in view.row.samples]
    blocks = preview_page.row_blocks(view.row)
    assert blocks[-1].words == f"padding: {view.row.padding} tokens"
    assert blocks[-1].x + blocks[-1].width == pytest.approx(preview_page.WIDE, abs=1)


def test_a_job_that_does_not_pack_has_no_row(prepared: Prepared, tiny_model: Path) -> None:
    view = preview(prepared, tiny_model, config(pack=False), Choice())
    assert view.row is None
    assert "packed row" not in preview_page.to_html(view, "job")


# --- which samples ---


@pytest.mark.parametrize(("size", "count", "wanted"), [(100, 4, [12, 37, 62, 87]), (3, 9, [0, 1, 2]), (5, 1, [2])])
def test_samples_are_evenly_spread(size: int, count: int, wanted: list[int]) -> None:
    assert spread(size, count) == wanted


def test_a_cut_sample_says_how_much_is_lost(tmp_path: Path, tiny_model: Path) -> None:
    records = [conversation(1), turns("word " * 120, "yes")]
    whole = made(tmp_path, tiny_model, records, max_length=999)
    lost = int(whole.lengths[1]) - 96
    values = {"max_length": 96, "too_long": "truncate_left"}
    view = preview(made(tmp_path, tiny_model, records, **values), tiny_model, config(**values), Choice())
    assert [sample.cut for sample in view.samples] == [0, lost]
    assert view.samples[0].about.endswith("whole")
    assert f"cut: {lost} tokens on the left are lost" in preview_page.to_html(view, "job")


def test_a_line_is_found_and_a_dropped_or_missing_one_is_said(tmp_path: Path, tiny_model: Path) -> None:
    records = [conversation(1), turns("word " * 300, "yes"), conversation(2)]
    prepared = made(tmp_path, tiny_model, records)
    (sample,) = preview(prepared, tiny_model, config(), Choice(line=3)).samples
    assert sample.where == f"{tmp_path / 'chat.jsonl'}:3"
    with pytest.raises(DataError, match=r"chat\.jsonl:2: the sample was dropped: \d+ tokens, at most 512"):
        preview(prepared, tiny_model, config(), Choice(line=2))
    with pytest.raises(DataError, match=r"no sample begins at line 9\n.*the last is .*chat\.jsonl:3"):
        preview(prepared, tiny_model, config(), Choice(line=9))


# --- the page ---


def test_the_page_is_one_file_that_asks_the_network_for_nothing_and_escapes(view: Preview) -> None:
    page = preview_page.to_html(view, "job <script>")
    assert not re.findall(r"""<script|<link|<iframe|<img|<[^>]*\s(?:src|href|action|on\w+)\s*=|url\(|@import""", page)
    text = "".join(text for _, _, text in Tokens(page).of("sample")[-1])
    assert r"<script>alert(1)</script><img·src=x·onerror=y>\x1b[31m" in text
    assert "\x1b" not in page


def test_a_token_that_is_a_whole_tag_is_escaped() -> None:
    """Tokenizers with tags in their vocabulary have such tokens; a byte-level one has tags in pieces."""
    token = Piece(0, 1, ATTACK, learnt=True)
    page = preview_page.to_html(Preview("train", 1, [Shown('x"<b>', [token])], Row([Shown("<b>", [token])], 4)), "job")
    assert not re.search("<script|<img|<b>", page)
    assert Tokens(page).of("sample") == Tokens(page).of("packed") == [[(token.about, True, token.shown)]]


def browser() -> str:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    return found or pytest.skip(f"no browser to open the page in: none of {', '.join(names)}")


def shot(page: Path, folder: Path, scheme: str) -> Any:
    """A real browser's picture of a page, which must have no word on its console."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    options += ["--hide-scrollbars", "--window-size=1200,900", "--enable-logging=stderr"]
    options += [f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"]
    command = [browser(), *options, f"--screenshot={folder / 'page.png'}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    with Image.open(folder / "page.png") as picture:
        return picture.convert("RGB").copy()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_real_browser_shows_what_is_learnt_in_its_colour(
    tmp_path: Path, job: MakeJob, trackbed: Command, scheme: str
) -> None:
    page = tmp_path / "page.html"
    done = trackbed("data", "preview", job(), "--html", page)
    assert done.returncode == 0, done.stderr
    picture = shot(page, tmp_path, scheme)
    counted = {colour: count for count, colour in picture.getcolors(1 << 24)}
    assert picture.getpixel((2, 2)) == ((255, 255, 255) if scheme == "light" else (20, 23, 28))
    assert counted[(185, 236, 198) if scheme == "light" else (29, 74, 43)] > 500
    assert counted[(236, 239, 243) if scheme == "light" else (38, 43, 51)] > 2000


# --- the command ---


def test_the_command_shows_the_same_each_time(job: MakeJob, trackbed: Command) -> None:
    first, second = (trackbed("data", "preview", job(), "--part", "heldout", "--samples", "2") for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert re.findall(r"heldout\.jsonl:(\d+)", first.stdout) == ["6", "16"]
    assert "heldout: 2 of 20 samples" in first.stdout
    assert "⟦it│" in first.stdout or "⟦i│" in first.stdout


def test_the_command_names_mistakes(job: MakeJob, trackbed: Command, tmp_path: Path) -> None:
    missing = trackbed("data", "preview", job(), "--line", "999")
    assert (missing.returncode, "no sample begins at line 999" in missing.stderr) == (2, True)
    nowhere = trackbed("data", "preview", job(), "--html", tmp_path / "no" / "page.html")
    assert (nowhere.returncode, "the page cannot be written" in nowhere.stderr) == (2, True)
    assert "Traceback" not in missing.stderr + nowhere.stderr


def test_a_stage_has_one_bar() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with stages(console) as progress:
        for done in range(4):
            progress("first stage", done, 3)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("\n") == 1
    assert "3/3" in console.file.getvalue()
