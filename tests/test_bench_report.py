"""The report of benches: every kind of result has its table and figures, and what is no result is refused by name."""

import json
import re
from html.parser import HTMLParser

import native_tools as tools
import pytest
from click.testing import CliRunner

from pyharness.bench import figures
from pyharness.bench.tables import TABLES, parts, table_of
from pyharness.cli import main

ENV = {
    "date": "2026-01-02T03:04:05+00:00",
    "command": "pyharness bench any --json",
    "cpu": "A CPU <of ours>",
    "cores": 2,
    "load": 0.12,
    "governor": None,
    "threads": [1, 2],
    "builds": {
        "stock": {"library": "/stock.so", "sha256": "5" * 64, "features": "AVX2 FMA"},
        "ours": {"library": "/ours.so", "sha256": "0" * 64, "features": "AVX2 FMA"},
    },
}
ROW = {
    **{"model": "tiny.en", "speech": "asterisk-en", "arm": "stock", "rule": None, "budget": None, "tau": None},
    **{"n": 3, "build": "libwhisper 00000000", "ms": 12.5, "ms_low": 11.0, "ms_high": 14.0},
    **{"ratio_to_stock": 1.0, "ratio_low": 0.9, "ratio_high": 1.1, "failed_clips": 0, "same_tokens": 1.0},
}
SCORED = {"wer": 0.25, "same_text": 3, "difference": -0.01, "bound_upper": -0.02, "verdict": "Non-inferior"}
SPEEDUP = {"speedup_vs_stock": 1.0, "speedup_low": None, "speedup_high": None}
READ = {"positions": 1500.0, "bytes_read": 9.2e6, "rows_copied": 0.0, "full": 0, "reexecuted": 0}
NO_PARTS = dict.fromkeys(("weights_ms", "cross_ms", "text_ms", "tracking_ms", "rest_ms"))
PARTS = {"weights_ms": 5.0, "cross_ms": 4.0, "text_ms": 1.0, "tracking_ms": 0.5, "rest_ms": 2.25}
SPLIT = {"clip_s_mean": 1.5, "mel_ms": 3.0, "encoder_ms": 1e3, "decoder_ms": 97.0, "tokens": 3.5}
THROUGHPUT = {
    **{"tokens_per_s": 50.0, "clips_per_s": None, "latency_ratio": 1.0, "latency_low": 1.0, "latency_high": 1.0},
    **{"p50_ms": 20.0, "p90_ms": 30.0, "max_ms": 40.0, "clips": None, "peak_mb": 200.0, "rounds": 6, "reexecuted": 0.1},
}
BYTES = {
    **{"source": "counted", "bytes_per_step": 4.7e7, "bytes_low": 4e7, "bytes_high": 5e7, "saving_share": None},
    **{"bytes_weights": 3e7, "bytes_cross": 2e7, "steps": 3},
}
OURS = {"arm": "padsink-track budget=192", "rule": "padsink-track", "budget": 192}
CLIP = {"clip": "/clips/jfk.wav", "steps": 3}


def result(bench, *rows, **env):
    """As the bench prints it, with one and with two threads."""
    every = [{**ROW, "threads": threads, **row} for threads in ENV["threads"] for row in rows]
    return {"env": {"bench": bench, **ENV, **env}, "rows": every}


RESULTS = {
    "step": result("step", {**READ, **NO_PARTS, "ms": 17.4}, {**READ, **PARTS, **OURS}, **CLIP),
    "step --mode real": result(
        "step --mode real",
        {**READ, **SCORED, "bytes_read": None, "tracking_share": None},
        {**READ, **SCORED, **OURS} | {"tracking_share": 0.01},
    ),
    "utterance": result(
        "utterance", *({**SPLIT, **SPEEDUP, **SCORED, **arm, "clip_s": s} for s in (1.0, 2.5) for arm in ({}, OURS))
    ),
    "builds": result("builds", {**SPLIT, **SPEEDUP, **SCORED, "clip_s": 1.0}),
    "decoders": result(
        "decoders",
        *(
            {**THROUGHPUT, **SCORED, **arm, "n": n, "mode": mode}
            for n in (1, 8)
            for mode in ("synthetic", "real")
            for arm in ({}, OURS)
        ),
    ),
    "dram": result(
        "dram",
        *({**READ, **BYTES, **arm, "cache": cache} for cache in ("L2", "L3") for arm in ({}, OURS)),
        unused_sources={"perf": "no counters here"},
        **CLIP,
    ),
    "peers": result(
        "peers",
        *(
            {**SCORED, **SPEEDUP, "weights": "f16", "peak_mb": 300.0, "ratio_to_faster_whisper_int8": 1.2, **arm}
            for arm in ({"wer": None, "verdict": None}, OURS, {"arm": "faster-whisper int8", "model": "base"})
        ),
        beam_size=5,
        builds={**ENV["builds"], "faster-whisper": {"faster-whisper": "1.2", "ctranslate2": "4.8"}},
    ),
}


def bench(*arguments):
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


@pytest.fixture
def saved(tmp_path):
    """Writes a result to a file."""

    def save(content, name="bench.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return save


@pytest.fixture
def page_of(saved, tmp_path):
    """The page of results."""

    def make(*results):
        files = [saved(one, f"{i}.json") for i, one in enumerate(results)]
        done = bench("report", *files, "--out", tmp_path / "page.html")
        assert done.exit_code == 0, done.output
        return (tmp_path / "page.html").read_text(encoding="utf-8")

    return make


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.texts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [value for key, value in attributes if key in ("src", "href", "xlink:href")]

    def handle_data(self, text):
        self.texts.append(text)


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_shows_in_each_row_what_a_speed_must_not_be_without(kind):
    """Where nothing is transcribed, "same" stands for the errors."""
    headers = {column.header for column in TABLES[kind].columns}
    errors = {"step": {"same"}, "dram": {"same"}, "decoders": {"same", "WER", "verdict"}}.get(kind, {"WER"})
    assert errors | {"n", "threads", "build"} <= headers
    for row in RESULTS[kind]["rows"]:
        shown = [column.show(row) for column in TABLES[kind].columns]
        assert any(re.search(r"\([\d.]+–[\d.]+\)$", text) for text in shown)  # the spread


@pytest.mark.parametrize(
    ("kind", "title"),
    [
        ("step", "tiny.en · 3 steps of jfk.wav · threads 2"),
        ("decoders", "tiny.en · asterisk-en · threads 2"),
        ("peers", "asterisk-en · beam 5 · threads 2"),
    ],
)
def test_a_table_says_what_was_measured(kind, title):
    _, (found, rows) = parts(RESULTS[kind])
    assert found == title and {row["threads"] for row in rows} == {2}


# --- page -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TABLES)
def test_a_section_has_the_conditions_the_table_of_the_bench_and_figures(kind, page_of):
    page = Page(page_of(RESULTS[kind]))
    for text in (f"bench {kind}", "2026-01-02T03:04:05+00:00", "A CPU <of ours>", ENV["command"], "0.12"):
        assert text in page.texts
    assert "stock: libwhisper 55555555 AVX2 FMA" in page.texts
    cells = [column.show(row) for row in RESULTS[kind]["rows"] for column in table_of(RESULTS[kind]).columns]
    shown = iter(page.texts)
    assert all(cell in shown for cell in cells)  # in this order
    assert table_of(RESULTS[kind]).legend in page.texts


def test_the_page_needs_nothing_else_and_its_ids_are_unique(page_of):
    text = page_of(*RESULTS.values(), RESULTS["step"])
    page = Page(text)
    assert len(set(page.ids)) == len(page.ids) > 0
    assert all(link.startswith("#") for link in page.links)
    assert not re.search(r"url\((?!#)|@import", text)
    assert text.count("<section>") == len(RESULTS) + 1


def texts(kind, rows=None):
    """Of the figures for one thread, each by its title."""
    rows = rows or [row for row in RESULTS[kind]["rows"] if row["threads"] == 1]
    drawn = figures.FIGURES[kind]("f", rows)
    return {re.search("<strong>(.*?)</strong>", one)[1]: re.findall(r"<text[^>]*>([^<]*)</text>", one) for one in drawn}


def test_a_step_is_split_into_its_parts_and_stock_is_one_bar():
    drawn = texts("step")["Where the time of a step goes"]
    assert [text for text in drawn if re.fullmatch(r"[\d.]+", text)][-2:] == ["17.4", "12.8"]  # 12.75
    assert {"weights", "cross", "text", "tracking", "rest", "not known"} <= set(drawn)


def test_lines_are_named_by_arm_and_what_they_are_of_where_that_begins():
    drawn = texts("utterance")["Where the time of a clip goes"]
    assert [t for t in drawn if "stock" in t or "padsink" in t] == [
        *("1 s · stock", "padsink-track 192", "2.5 s · stock", "padsink-track 192")
    ]
    assert "1100" in drawn  # not 1.1e+03


def test_decoders_have_both_modes_and_both_quantiles():
    drawn = texts("decoders")
    titles = (f"{what}, {mode}" for mode in ("synthetic", "real") for what in ("Throughput against stock", "Latency"))
    assert list(drawn) == list(titles)
    assert {"stock p50", "stock p90", "padsink-track 192 p90", "1", "8"} <= set(drawn["Latency, real"])


def test_bytes_are_drawn_for_each_cache_against_arithmetic():
    drawn = texts("dram")
    assert list(drawn) == ["Bytes read per step · cache L2", "Bytes read per step · cache L3"]
    beyond = drawn["Bytes read per step · cache L3"]
    assert {"weights", "cross", "counted"} <= set(beyond) and beyond.count("47") == 2  # MB found, not 30 + 20


def test_better_sources_that_do_not_work_are_named(page_of):
    assert "no perf: no counters here" in Page(page_of(RESULTS["dram"])).texts


def test_peers_without_words_to_score_have_no_place_among_errors():
    drawn = texts("peers")["Time and errors"]
    assert "base · faster-whisper int8" in drawn and not [text for text in drawn if "stock" in text]
    unscored = [row for row in RESULTS["peers"]["rows"] if row["wer"] is None]
    assert list(texts("peers", unscored)) == ["Peak memory"]


# --- command ----------------------------------------------------------------------------------------------------------


def test_markdown_has_the_tables_what_they_mean_and_the_command_and_writes_nothing(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = bench("report", saved(RESULTS["step"]), "--markdown")
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert [line for line in lines if line.startswith("**")] == [
        f"**tiny.en · 3 steps of jfk.wav · threads {threads}**" for threads in (1, 2)
    ]
    table = [line for line in lines if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1 and len(table) == 2 * 4
    assert TABLES["step"].legend in lines and f"    {ENV['command']}" in lines
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


def without(kind, key, where="rows"):
    """A result that lacks a key, in its last row."""
    broken = json.loads(json.dumps(RESULTS[kind]))
    del (broken["rows"][-1] if where == "rows" else broken["env"])[key]
    return broken


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (json.dumps(RESULTS["step"])[:-9], "not valid JSON"),
        ("", "not valid JSON"),
        ("[1]", "one JSON object"),
        ({"rows": RESULTS["step"]["rows"]}, "no result of a bench"),
        ({**RESULTS["step"], "rows": []}, "no result of a bench"),
        (without("step", "bench", "env"), "no 'bench' of these: step,"),
        ({**RESULTS["step"], "env": {"bench": ["step"]}}, "no 'bench' of these"),
        (without("step", "cpu", "env"), "has no 'cpu'"),
        (without("step", "clip", "env"), "has no 'clip'"),
        (without("step", "same_tokens"), "row 3 has no 'same_tokens'"),
        (without("utterance", "model"), "row 7 has no 'model'"),
        (without("peers", "peak_mb"), "row 5 has no 'peak_mb'"),
        (result("step", {**READ, **PARTS, "weights_ms": "much"}, **CLIP), "row 0 cannot be shown"),
        (result("step", {**READ, **PARTS, "ms": None}, **CLIP), "row 0 cannot be shown"),
        (result("step", {**READ, **PARTS, "rest_ms": float("nan")}, **CLIP), "rest_ms is nan"),
        ({**RESULTS["step"], "rows": [3]}, "row 0 cannot be shown"),
        (result("step", {**READ, **PARTS}, clip=3, steps=3), "cannot be shown"),
        (result("dram", {**READ, **BYTES, "cache": "L2", "bytes_cross": None}, **CLIP), "cannot be shown"),
    ],
)
def test_what_is_no_result_is_named_with_the_reason_and_nothing_is_written(content, reason, saved, tmp_path):
    good, bad = saved(RESULTS["step"], "good.json"), saved(content, "bad.json")
    done = bench("report", good, bad, "--out", tmp_path / "page.html")
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit)
    assert str(bad) in done.stderr and reason in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "page.html").exists()


def test_a_page_that_cannot_be_written_is_named(saved, tmp_path):
    done = bench("report", saved(RESULTS["step"]), "--out", tmp_path / "nowhere" / "page.html")
    assert done.exit_code == 2 and "nowhere/page.html" in done.stderr


def test_what_a_bench_prints_is_read(saved, page_of, tiny_en):
    options = ("--model", tiny_en, "--clip", tools.JFK, "--steps", 1, "--rounds", 2, "--threads", 1, "--budgets", 96)
    done = bench("step", *options, "--json")
    assert done.exit_code == 0, done.output
    assert "bench step" in Page(page_of(json.loads(done.stdout))).texts
