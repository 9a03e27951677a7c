"""Figures agree with a plain count, and what is planted is found and named: repeats and leaks, exact and near."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Command, write_jsonl
from test_data_preview import shot
from trackbed.data.chat.batches import Batches, collate
from trackbed.data.chat.prepare import prepare, silent
from trackbed.data.chat.prepared import Prepared
from trackbed.data.chat.recipe import Recipe
from trackbed.data.config import DataConfig
from trackbed.data.inspection import near, stats_page
from trackbed.data.inspection.repeats import normalised
from trackbed.data.inspection.stats import Rows, counted, described, padding, stats
from trackbed.data.order import Order, Share

MakeJob = Callable[..., Path]
ATTACK = "<script>alert(1)</script>"
# Written for these tests: enough words for texts that have nothing in common but the way they are asked.
WORDS = [a + b for a in ("ba", "co", "di", "fu", "ge", "ha", "jo", "ku", "li", "mo") for b in
         ("ran", "tel", "mis", "dov", "pun", "kar", "sel", "wit", "bon", "lug")]  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACKBED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def words(chance: random.Random, count: int) -> str:
    return " ".join(chance.choices(WORDS, k=count))


def asked(question: str, answer: str) -> dict[str, Any]:
    system = {"role": "system", "content": "You answer every question in a friendly and helpful way."}
    turns = [system, {"role": "user", "content": f"Please tell me what you know about this: {question}"}]
    return {"messages": [*turns, {"role": "assistant", "content": answer}]}


def clean(count: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [asked(words(chance, 20), words(chance, 15)) for _ in range(count)]


def altered(record: dict[str, Any], chance: random.Random, changes: int) -> dict[str, Any]:
    """The same with some words of the question replaced."""
    question = record["messages"][1]["content"].split()
    for place in chance.sample(range(10, len(question)), changes):
        question[place] = chance.choice(WORDS).upper()
    messages = [record["messages"][0], {"role": "user", "content": " ".join(question)}, record["messages"][2]]
    return {"messages": messages}


def config(**values: Any) -> DataConfig:
    return DataConfig(**{"train": "t", "heldout": "h", "max_length": 400, "row_length": 512, **values})


@pytest.fixture
def figures(tmp_path: Path, tiny_model: Path) -> Callable[..., dict[str, Any]]:
    """The statistics of two lists of records; `parts` of it are the prepared ones."""

    def make(train: list[Any], heldout: list[Any], **values: Any) -> dict[str, Any]:
        records = {"train": train, "heldout": heldout}
        paths = {name: write_jsonl(tmp_path / f"{name}.jsonl", each) for name, each in records.items()}
        parts = {name: prepare(Recipe.of(path, tiny_model, config()), workers=1) for name, path in paths.items()}
        return {**stats(parts, Rows(config(**values), at_once=4), silent), "prepared": parts}

    return make


def found(figures: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(each["id"], each["part"]): each for each in figures["findings"] if each["id"] != "padding"}


def lines(pairs: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(int(each["where"].rpartition(":")[2]), int(each["same_as"].rpartition(":")[2])) for each in pairs]


# --- what is there twice ---


def test_clean_data_has_no_repeats_and_no_leaks(figures: Any) -> None:
    """Although every sample has the same system turn and the same beginning of its question."""
    assert found(figures(clean(300, 1), clean(60, 2))) == {}


def test_a_set_as_small_as_ten_has_none_either(figures: Any) -> None:
    assert found(figures(clean(8, 1), clean(2, 2))) == {}


def test_exact_repeats_are_found_but_for_case_and_spacing(figures: Any) -> None:
    train = clean(100, 1)
    loud = json.loads(json.dumps(train[5]))
    loud["messages"][1]["content"] = "\n " + loud["messages"][1]["content"].upper().replace(" ", "  ")
    other_answer = asked("nothing", train[6]["messages"][2]["content"])
    repeats = found(figures([*train, train[3], train[3], loud, other_answer], clean(20, 2)))
    assert list(repeats) == [("repeat.exact", "train")]
    finding = repeats["repeat.exact", "train"]
    assert finding["count"] == 3
    assert lines(finding["named"]) == [(101, 4), (102, 4), (103, 6)]
    assert finding["what"].startswith("3 of 104 (2.9%) samples of train repeat an earlier one")
    assert [(group["where"].rpartition(":")[2], group["count"]) for group in finding["groups"]] == [("4", 3), ("6", 2)]
    assert finding["named"][0]["text"].startswith("Please tell me")


def test_repeats_of_the_heldout_part_are_its_own(figures: Any) -> None:
    heldout = clean(20, 2)
    repeats = found(figures(clean(100, 1), [*heldout, heldout[0]]))
    assert {key: each["count"] for key, each in repeats.items()} == {("repeat.exact", "heldout"): 1}


def test_ten_are_named_and_all_are_counted(figures: Any) -> None:
    train = clean(50, 1)
    finding = found(figures([*train, *train[:30]], clean(20, 2)))["repeat.exact", "train"]
    assert (finding["count"], len(finding["named"])) == (30, 10)


def test_each_kind_of_leak_is_named_by_both_lines(figures: Any) -> None:
    train, heldout = clean(100, 1), clean(20, 2)
    answers = [record["messages"][2]["content"] for record in train]
    heldout[3] = train[10]
    heldout[5] = {"messages": [*train[20]["messages"][:2], {"role": "assistant", "content": "another answer"}]}
    heldout[7] = asked("something that nobody has asked before, at all", answers[30])
    heldout[9] = altered(train[40], random.Random(1), 1)
    leaks = found(figures(train, heldout))
    assert {key: lines(each["named"]) for key, each in leaks.items()} == {
        ("leak.conversation", "heldout"): [(4, 11)],
        ("leak.question", "heldout"): [(6, 21)],
        ("leak.near", "heldout"): [(10, 41)],
        # The near one has its answer in common as well: both are true, and both are said.
        ("leak.answer", "heldout"): [(8, 31), (10, 41)],
    }
    assert all(each["means"] and each["remedy"] for each in leaks.values())
    assert 0.8 <= leaks["leak.near", "heldout"]["named"][0]["similarity"] < 1


def test_planted_near_duplicates_are_found_inside_and_across(figures: Any) -> None:
    """Recall of 1: all planted pairs that share 0.8 of their shingles, measured here one by one, and no other pair."""
    chance = random.Random(3)
    train, heldout = clean(400, 1), clean(100, 2)
    copies = [altered(train[index], chance, 1 + index % 3) for index in range(100)]
    leaks = [altered(train[index], chance, 1 + index % 3) for index in range(100, 160)]
    figures = figures([*train, *copies], [*heldout, *leaks])
    parts: dict[str, Prepared] = figures["prepared"]
    shared = near.common(list(parts.values()))
    signs = {name: near.Signatures(part, shared, silent) for name, part in parts.items()}

    def share(name: str, number: int, original: int) -> float:
        return near.similarity(signs[name].shingles(number), signs["train"].shingles(original))

    inside = {400 + index: index for index in range(100) if share("train", 400 + index, index) >= near.LEAST}
    across = {100 + index: 100 + index for index in range(60) if share("heldout", 100 + index, 100 + index) >= 0.8}
    assert len(inside) > 30
    assert len(across) > 15
    assert len(inside) < 100  # some are altered too much, and must not be named
    nobody = np.zeros(500, dtype=np.bool_)
    assert {number: hit[0] for number, hit in near.inside(signs["train"], nobody).items()} == inside
    assert {n: hit[0] for n, hit in near.across(signs["heldout"], signs["train"], nobody[:160]).items()} == across
    assert found(figures)["repeat.near", "train"]["count"] == len(inside)
    assert found(figures)["leak.near", "heldout"]["count"] == len(across)


def test_a_cluster_of_near_duplicates_is_found_whole(figures: Any) -> None:
    chance = random.Random(5)
    train = clean(100, 1)
    finding = found(figures([*train, *(altered(train[0], chance, 1) for _ in range(30))], clean(20, 2)))
    assert finding["repeat.near", "train"]["count"] >= 28
    assert finding["repeat.near", "train"]["groups"][0]["count"] >= 20


def test_a_chain_of_versions_is_found(figures: Any) -> None:
    """Each is nearly the one before it; the last has little of the first."""
    chance = random.Random(8)
    versions = [clean(1, 9)[0]]
    for _ in range(20):
        versions.append(altered(versions[-1], chance, 1))
    finding = found(figures([*clean(60, 1), *versions], clean(20, 2)))
    assert finding["repeat.near", "train"]["count"] >= 15


def test_stretches_make_no_difference(figures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = figures(clean(60, 1), clean(20, 2))["prepared"]
    whole = near.Signatures(parts["train"], near.common([parts["train"]]), silent)
    monkeypatch.setattr(near, "CHUNK_TOKENS", 300)
    pieces = near.Signatures(parts["train"], near.common([parts["train"]]), silent)
    assert len(list(near.chunks(parts["train"].lengths))) > 10
    for band in range(near.BANDS):
        assert np.array_equal(whole.keys(band), pieces.keys(band))
    assert whole.valid.all()
    assert pieces.valid.all()


def test_the_share_of_equal_hashes_estimates_the_similarity(figures: Any) -> None:
    chance = random.Random(7)
    train = clean(200, 1)
    copies = [altered(record, chance, 1 + index % 6) for index, record in enumerate(train)]
    parts = figures([*train, *copies], clean(20, 2))["prepared"]
    signs = near.Signatures(parts["train"], near.common(list(parts.values())), silent)
    mine = np.arange(200)
    estimated = signs.alike(mine, signs, mine + 200)
    exact = [near.similarity(signs.shingles(index), signs.shingles(index + 200)) for index in range(200)]
    assert np.abs(estimated - exact).mean() < 0.06  # the standard deviation of 63 coins is 0.063 at most
    assert abs((estimated - exact).mean()) < 0.02


def test_spacing_and_case_are_normalised() -> None:
    assert normalised("  Straße\n\tX ") == normalised("STRASSE x")


# --- figures ---


def test_figures_agree_with_a_plain_count(figures: Any) -> None:
    train = [*clean(40, 1), {"messages": [*asked("a b c", "d e f")["messages"], *asked("g", "h i")["messages"][1:]]}]
    part = (made := figures(train, clean(20, 2)))["parts"]["train"]
    samples = list(made["prepared"]["train"])
    lengths = [len(sample.ids) for sample in samples]
    assert part["samples"] == 41
    assert part["tokens"] == sum(lengths)
    assert part["supervised_share"] == round(sum(int(each.supervised.sum()) for each in samples) / sum(lengths), 4)
    told = {name: part["lengths"][name] for name in ("min", "median", "p95", "p99", "max")}
    rank = {"median": 50, "p95": 95, "p99": 99}
    wanted = {name: int(np.percentile(lengths, at, method="inverted_cdf")) for name, at in rank.items()}
    assert told == {"min": min(lengths), "max": max(lengths), **wanted}
    assert part["lengths"]["mean"] == pytest.approx(np.mean(lengths), abs=0.01)
    for bar in part["lengths"]["histogram"]:
        assert bar["samples"] == sum(bar["from"] <= length <= bar["to"] for length in lengths)
    assert sum(bar["samples"] for bar in part["lengths"]["histogram"]) == 41
    assert (part["turns"]["min"], part["turns"]["max"]) == (3, 5)
    assert part["roles"] == {"user": 42, "assistant": 42, "system": 41}


def test_padding_is_what_training_pads(figures: Any) -> None:
    made = figures(clean(90, 1), clean(20, 2))
    samples, packing = made["prepared"]["train"], made["parts"]["train"]["packing"]
    longest = int(samples.lengths.max())
    assert [each["row_length"] for each in packing["packed"]] == [
        width for width in (256, 512, 1024, 2048) if width >= longest
    ]
    for each in packing["packed"]:
        wide = config(row_length=each["row_length"])
        stream = Batches(samples, wide, Share(0, 1, 1))
        tokens = sum(stream.step(step).batches[0].tokens for step in range(each["rows"]))
        assert tokens == samples.tokens
        assert each["padding"] == pytest.approx(1 - tokens / (each["rows"] * each["row_length"]), abs=1e-4)
    order = Order(90, 0).at(0, 90).tolist()
    batches = [collate([[samples[index]] for index in order[at : at + 4]]) for at in range(0, 90, 4)]
    spent = sum(batch.ids.size for batch in batches)
    assert packing["unpacked"]["padding"] == pytest.approx(1 - samples.tokens / spent, abs=1e-4)


def test_a_job_that_pads_much_is_told_a_better_width(figures: Any) -> None:
    uneven = [asked("x", words(random.Random(index), 1 + index % 40)) for index in range(100)]
    (finding,) = [each for each in figures(uneven, clean(9, 2), pack=False)["findings"] if each["id"] == "padding"]
    assert "batches of 4 unpacked samples are padding" in finding["what"]
    assert re.fullmatch(r"set data.pack to true and data.row_length to \d+", finding["remedy"])
    (finding,) = [each for each in figures(uneven, clean(9, 2))["findings"] if each["id"] == "padding"]
    assert finding["what"].endswith(f"packed into rows of 1024 it would be {_padding(figures(uneven, clean(9, 2)))}")
    assert finding["remedy"] == "set data.row_length to 1024"
    good = figures(uneven, clean(9, 2), row_length=1024)
    assert not [each for each in good["findings"] if each["id"] == "padding"]


def _padding(figures: dict[str, Any]) -> str:
    packed = figures["parts"]["train"]["packing"]["packed"]
    return f"{next(each['padding'] for each in packed if each['row_length'] == 1024):.1%}"


def test_a_width_that_the_job_would_refuse_is_not_advised() -> None:
    packed = [{"row_length": width, "rows": 90, "padding": share} for width, share in ((256, 0.0), (512, 0.02))]
    made = {"packing": {"packs": False, "row_length": 512, "packed": packed, "unpacked": {"padding": 0.4}}}
    (finding,) = padding(made, Rows(config(pack=False), at_once=4))  # max_length is 400
    assert finding.remedy == "set data.pack to true and data.row_length to 512"
    assert padding({"packing": {**made["packing"], "unpacked": {"padding": 0.04}}}, Rows(config(pack=False))) == []


def test_counts_are_read_in_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).integers(1, 90, 1000)
    monkeypatch.setattr("trackbed.data.inspection.stats.STRETCH", 64)
    assert dict(enumerate(counted(values).tolist())) == {**dict.fromkeys(range(90), 0), **Counter(values.tolist())}
    assert described(counted(np.array([7])))["p99"] == 7


# --- the command and the page ---


def test_the_command_says_and_shows_what_it_found(
    tmp_path: Path, tiny_model: Path, job: MakeJob, trackbed: Command
) -> None:
    path = job(data={"max_length": 400, "row_length": 512})
    train, heldout = clean(60, 1), clean(12, 2)
    train[5] = asked(f"{ATTACK}\x1b[31m {words(random.Random(9), 12)}", "it is an attack")
    write_jsonl(tmp_path / "train.jsonl", [*train, train[5]])
    write_jsonl(tmp_path / "heldout.jsonl", [*heldout, train[5], train[7]])
    text = trackbed("data", "stats", path)
    assert text.returncode == 0, text.stderr
    assert f"{tmp_path}/heldout.jsonl:13 is like {tmp_path}/train.jsonl:6: Please tell me" in text.stdout
    assert "leak.conversation: 2 of 14 (14.3%) held-out samples are in train as well, word for word" in text.stdout
    assert "  mend:  delete these lines from one of the two parts" in text.stdout
    assert "\x1b" not in text.stdout
    page = tmp_path / "page.html"
    done = trackbed("data", "stats", path, "--json", "--html", page)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [each["id"] for each in told["findings"]] == ["leak.conversation", "repeat.exact", "padding"]
    html = page.read_text("utf-8")
    assert not re.findall(r"""<script|<link|<iframe|<img|<[^>]*\s(?:src|href|action|on\w+)\s*=|url\(|@import""", html)
    assert "&lt;script&gt;alert(1)" in html
    for part in told["parts"].values():
        shown = [bar for bar in part["lengths"]["histogram"] if bar["samples"]]
        assert all(f"{bar['from']} to {bar['to']} tokens: {bar['samples']} samples" in html for bar in shown)
    picture = shot(page, tmp_path, "light")
    counted = {colour: count for count, colour in picture.getcolors(1 << 24)}
    assert counted[(76, 120, 200)] > 500  # the bars
    assert counted[(183, 121, 31)] > 200  # the edges of the findings


def test_bars_are_on_one_scale_and_the_row_is_marked(figures: Any) -> None:
    lengths = figures(clean(90, 1), clean(20, 2))["parts"]["train"]["lengths"]
    for row_length in (lengths["max"], 2 * lengths["max"]):
        drawn = stats_page.length_bars(lengths, row_length)
        tall = {bar["samples"]: shown.height for bar, shown in zip(
            [each for each in lengths["histogram"] if each["samples"]], drawn.bars, strict=True)}  # fmt: skip
        assert tall[max(tall)] == stats_page.HIGH - 4
        assert drawn.edge == pytest.approx(row_length / (drawn.most + 1) * stats_page.WIDE, abs=1)
    assert stats_page.length_bars(lengths, 100 * lengths["max"]).edge is None


def test_faults_of_both_parts_are_named_at_once(tmp_path: Path, job: MakeJob, trackbed: Command) -> None:
    path = job()
    for name in ("train", "heldout"):
        with (tmp_path / f"{name}.jsonl").open("a") as file:
            file.write("{}\n")
    done = trackbed("data", "stats", path, "--json")
    assert done.returncode == 2
    places = [each["where"] for each in json.loads(done.stdout)["problems"]]
    assert places == [f"{tmp_path}/train.jsonl:101", f"{tmp_path}/heldout.jsonl:21"]
    assert "Traceback" not in done.stderr
