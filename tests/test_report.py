import io
import json
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner
from rich.console import Console

from pyharness.cli import main
from pyharness.errors import HarnessError
from pyharness.report import print_tables, step_time, write_report
from pyharness.summary import Row
from pyharness.table import percent, points

EVIL = '<script>alert("x")</script>'
VOID = {"meta", "br", "link", "img"}


def row(rule="padsink-track", **changes):
    values = {
        "model": "base-q8_0",
        "language": "en",
        "rule": rule,
        "budget": 192,
        "sink_fraction": 0.25,
        "tau": 0.4,
        "n": 312,
        "wer": 0.0231,
        "wer_full": 0.0224,
        "difference": 0.0007,
        "bound_upper": -0.0012,
        "verdict": "Non-inferior",
        "positions_read": 171.6,
        "reexecuted_share": 0.043,
        "runaway_clips": 0,
        "step_ratio": 0.66,
        "step_ratio_low": 0.63,
        "step_ratio_high": 0.7,
        "threads": 1,
        "build": "1.8.5+padsink avx512",
    }
    return values | changes


def group(**changes):
    """Ten rows as a sweep writes them: the reference, good and bad rules, nulls."""
    nothing = dict.fromkeys(("budget", "sink_fraction", "tau", "reexecuted_share", "difference", "bound_upper"))
    bad = {"verdict": "Inferior", "bound_upper": 1.2}
    open_ = {"verdict": "Inconclusive", "bound_upper": 0.0021}
    rows = [
        row("full", **nothing, wer=0.0224, verdict=None, positions_read=1500, positions_read_all=1500, step_ratio=1.0),
        row("audio-only", **nothing | bad | {"wer": 6.45, "difference": 6.4276}, positions_read=208),
        row(budget=384, positions_read=268, tau=None),
        row(budget=192, positions_read_all=431.4, n_clusters=28, clusters="speaker"),
        row(budget=96, positions_read=96, wer=0.029, difference=0.0066, **open_),
        row("first-step-top", budget=384, positions_read=384, wer=0.21, difference=0.1876, **bad),
        row("first-step-top", budget=128, positions_read=128, wer=1.9, difference=1.8776, **bad),
        row("stride", budget=375, positions_read=375, wer=0.8, **bad, step_ratio=None),
        row("random", budget=256, positions_read=256, wer=1.1, **bad, runaway_clips=41),
        row(f"odd {EVIL}", budget=256, positions_read=None, wer=None, step_ratio=None, verdict=None),
    ]
    return [entry | changes for entry in rows]


RUN = {
    "models": [{"name": "base-q8_0", "sha256": "0123456789abcdef" * 4}],
    "speech": [{"name": "asterisk-en", "language": "en", "n": 312, "synthetic": False}],
    "cpu": "AMD EPYC (2 cores)",
    "threads": 1,
    "date": "2026-11-30T21:00:00Z",
    "settings": {"beam": 1, "margin": 0.2, "seed": 0},
    "command": ["pyharness", "sweep", "--model", "base q8_0"],
    "a key nobody knows": {"note": EVIL},
}


class Page(HTMLParser):
    """Collects tags, attributes and cells; fails on tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.tables = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

    def lines(self, column):
        """Lines of all tables that have the column, as {header: cell}."""
        return [dict(zip(head, cells, strict=True)) for head, *body in self.tables if column in head for cells in body]


@pytest.fixture
def run_dir(tmp_path):
    rows = group() + group(language="ru", model="small-q5_0")
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    (tmp_path / "summary.json").write_text(json.dumps({"rows": rows}))
    return tmp_path


@pytest.fixture
def text(run_dir):
    return write_report(run_dir).read_text(encoding="utf-8")


def test_page_has_a_table_line_for_every_row_with_its_verdict(text):
    lines = Page(text).lines("verdict")
    assert len(lines) == 20
    assert [line["verdict"] for line in lines[:6]] == [
        "reference",
        "Inferior",
        "Non-inferior",
        "Non-inferior",
        "Inconclusive",
        "Inferior",
    ]
    assert lines[1]["WER"] == "645 %" and lines[1]["budget"] == "–"
    assert lines[0]["all steps"] == "1500" and lines[3]["all steps"] == "431" and lines[1]["all steps"] == "–"
    assert (lines[0]["diff."], lines[0]["bound"]) == ("–", "–")
    assert "n 312 in 28 clusters by speaker · threads 1" in text
    assert lines[3]["diff."] == "+0.07" and lines[3]["bound"] == "−0.12"


ERRORS = {"substitutions": 5, "deletions": 2, "insertions": 1, "empty_outputs": 4, "cer": 0.0123}
SCRIPTS = {"latin_words": 90, "cyrillic_words": 12, "other_words": 3}


def test_kinds_of_errors_and_scripts_stand_in_a_table_of_their_own(run_dir):
    rows = [row(**ERRORS, **SCRIPTS, language="uz", speech="espeak-uz", synthetic=True)]
    (run_dir / "summary.json").write_text(json.dumps({"rows": rows}))
    page = write_report(run_dir).read_text()
    [line] = Page(page).lines("CER")
    assert [line[name] for name in ("subst.", "del.", "ins.", "empty", "CER")] == ["5", "2", "1", "4", "1.23 %"]
    assert [line[name] for name in ("Latin", "Cyrillic", "other")] == ["90", "12", "3"]
    assert "<h2>base-q8_0 · uz · espeak-uz (synthetic)</h2>" in page
    result = CliRunner().invoke(main, ["report", str(run_dir), "--errors", "--markdown"])
    assert "| 5 | 2 | 1 |" in result.output and "espeak-uz (synthetic)" in result.output


def test_two_speech_sets_of_a_language_are_two_tables(run_dir):
    rows = [row("full", speech=speech) for speech in ("a.jsonl", "b.jsonl")]
    (run_dir / "summary.json").write_text(json.dumps({"rows": rows}))
    page = Page(write_report(run_dir).read_text())
    assert page.tags.count("h2") == 2


def test_speed_never_stands_without_error_rate_n_spread_threads_and_build(text):
    for line in Page(text).lines("step time"):
        if "×" in line["step time"]:
            assert "(0.63–0.70)" in line["step time"]
            assert all(line[name] != "–" for name in ("WER", "n", "threads", "build"))

    assert step_time(Row.from_json(row())) == "×0.66 (0.63–0.70)"
    for name in ("wer", "step_ratio_low", "step_ratio_high", "threads", "build"):
        assert step_time(Row.from_json(row(**{name: None}))) == "not shown (incomplete)"


def test_page_loads_nothing(text):
    page = Page(text)
    assert not {"link", "script", "img", "iframe"} & set(page.tags)
    assert "http" not in text and "@import" not in text
    addresses = [value for name, value in page.attributes if name in ("src", "href", "xlink:href")]
    assert all(address.startswith("#") for address in addresses)


def test_plots_are_inline_with_text_as_text_and_ids_of_their_own(text):
    page = Page(text)
    assert page.tags.count("svg") == page.tags.count("figure") == 6
    assert sum(name == "aria-label" for name, _ in page.attributes) == 6 + page.tags.count("table")
    assert "#0102" not in text  # the colours that stand for the page's
    assert "first-step-top</text>" in text and "positions read per step" in text
    assert "mathdefault" not in text
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    used = {value[1:] for name, value in page.attributes if name == "xlink:href"}
    assert used and used <= set(ids)


def test_window_track_stands_with_its_model_and_language(run_dir, text):
    assert "Window track" not in text
    runs = [
        {"kind": "prompt", "centre": 3, "window": [0, 70], "sinks": []},
        {"kind": "reduced", "centre": -1, "window": [0, 40], "sinks": [90, 1400]},
    ]
    track = {"n_audio": 70, "runs": runs}
    rows = [
        {"model": "small-q5_0", "language": "ru", "id": f"clip {EVIL}", "arm": "padsink-track", "track": track},
        {"model": "small-q5_0", "language": "ru", "id": "b", "arm": "padsink-track"},
    ]
    (run_dir / "utterances.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = write_report(run_dir).read_text(encoding="utf-8")
    assert Page(text).tags.count("figure") == 7 and EVIL not in text
    assert text.index("Window track") > text.index("small-q5_0 · ru</h2>")
    assert "audio only: 70 positions</text>" in text


@pytest.mark.parametrize("content", ["{", "[1]", '{"track": {"runs": [{}]}}'])
def test_broken_utterances_are_named(run_dir, content):
    (run_dir / "utterances.jsonl").write_text(content)
    with pytest.raises(HarnessError, match=r"utterances\.jsonl: not rows of a run"):
        write_report(run_dir)


def test_text_from_the_run_is_escaped(text):
    assert EVIL not in text
    assert "odd &lt;script&gt;" in text


def test_header_tells_what_was_run(text):
    for expected in (
        "base-q8_0 · sha256 0123456789ab<",
        "asterisk-en · en · n 312 · not synthetic",
        "AMD EPYC (2 cores)",
        "beam = 1, margin = 0.2, seed = 0",
        "pyharness sweep --model &#x27;base q8_0&#x27;",
    ):
        assert expected in text


def test_run_without_any_known_key_says_so(run_dir):
    (run_dir / "run.json").write_text("{}")
    assert "not recorded" in write_report(run_dir).read_text()


def test_same_run_gives_the_same_page(run_dir, text):
    assert write_report(run_dir).read_text() == text


def test_rows_that_cannot_be_plotted_are_still_listed(run_dir):
    empty = row("full", wer=None, wer_full=None, positions_read=None, step_ratio=None)
    (run_dir / "summary.json").write_text(json.dumps({"rows": [empty, row(wer=0, wer_full=0, model="perfect")]}))
    assert len(Page(write_report(run_dir).read_text()).lines("verdict")) == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        ("{", "not valid JSON"),
        ("[]", "one JSON object"),
        ("{}", "'rows' must be"),
        ('{"rows": []}', "at least one row"),
        ('{"rows": [1]}', "row 0 is not an object"),
        (json.dumps({"rows": [row(), {"model": "base"}]}), "row 1 has no 'language'"),
        (json.dumps({"rows": [row(wer="low")]}), "row 0 has wer = 'low', which is not a number"),
        (json.dumps({"rows": [row(model=None)]}), "row 0 has model = None, which is not a text"),
    ],
)
def test_broken_summary_is_named(run_dir, content, reason):
    summary = run_dir / "summary.json"
    summary.unlink() if content is None else summary.write_text(content)
    with pytest.raises(HarnessError, match=reason) as caught:
        write_report(run_dir)
    assert str(summary) in caught.value.message
    assert not (run_dir / "report.html").exists()


def test_broken_run_file_is_named(run_dir):
    (run_dir / "run.json").unlink()
    with pytest.raises(HarnessError, match=r"run\.json"):
        write_report(run_dir)


@pytest.mark.parametrize("width", [60, 250])
def test_terminal_tables_cut_no_figure(width):
    output = io.StringIO()
    print_tables(group() + group(language="ru"), Console(file=output, width=width))
    printed = output.getvalue()
    assert "base-q8_0 · en" in printed and "base-q8_0 · ru" in printed
    assert printed.count("×0.66 (0.63–0.70)") == 14
    assert "…" not in printed
    line = next(line for line in printed.splitlines() if "audio-only" in line)
    assert "645 %" in line and "Inferior" in line and "312" in line and "1.8.5+padsink avx512" in line
    assert (
        "n 312 in 28 clusters by speaker · threads 1 · build 1.8.5+padsink avx512 · margin 0.2 × WER of full (2.24 %)"
        in " ".join(printed.split())
    )


def test_terminal_prints_names_as_they_are():
    output = io.StringIO()
    print_tables([row(model="[bold]m[/bold]", rule="[red]r")], Console(file=output, width=250))
    assert "[bold]m[/bold] · en" in output.getvalue() and "[red]r" in output.getvalue()


@pytest.mark.parametrize(
    ("fraction", "text"), [(None, "–"), (0, "0.00 %"), (0.0645, "6.45 %"), (0.309, "30.9 %"), (6.45, "645 %")]
)
def test_percent(fraction, text):
    assert percent(fraction) == text


@pytest.mark.parametrize(
    ("fraction", "text"), [(None, "–"), (0.0123, "+1.23"), (-0.004, "−0.40"), (0, "0.00"), (-0.00001, "0.00")]
)
def test_points(fraction, text):
    assert points(fraction) == text


def test_filters_that_leave_nothing_are_an_error(run_dir):
    for wanted in (["--rule", "no-such-rule"], ["--rule", "stride", "--budget", "96"]):
        for form in ([], ["--markdown"]):
            result = CliRunner().invoke(main, ["report", str(run_dir), *wanted, *form])
            assert result.exit_code == 2 and "no row of" in result.output
    result = CliRunner().invoke(main, ["report", str(run_dir), "--markdown", "--budget", "25%"])
    assert result.exit_code == 0 and "stride" in result.output and "| padsink-track" not in result.output


def test_a_page_that_cannot_be_written_is_named(run_dir):
    (run_dir / "report.html.part").mkdir()
    with pytest.raises(HarnessError, match=r"cannot write .*report\.html"):
        write_report(run_dir)
