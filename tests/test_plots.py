"""Plots of a report: what is drawn, where."""

import re
from dataclasses import replace

import pytest
from test_report import row

from pyharness import plots
from pyharness.summary import Row
from pyharness.track import Run, Track

GOOD = Row.from_json(row(tau=0.4))  # difference 0.07 points, margin 0.448, bound beyond it -0.12
BAD = replace(GOOD, rule="stride", difference=0.2, bound_upper=0.9, verdict="Inferior", reexecuted_share=0.0)
OPEN = replace(GOOD, budget=96, tau=0.0, bound_upper=0.002, verdict="Inconclusive")


def lines(svg: str, style: str) -> list[list[tuple[float, float]]]:
    """Points of the lines whose style holds this text."""
    paths = re.findall(r'<path d="([^"]*)"[^>]*style="([^"]*)"', svg)
    return [
        [(float(x), float(y)) for x, y in re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", d)] for d, s in paths if style in s
    ]


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


@pytest.mark.parametrize(
    ("arm", "colour", "sides"), [(GOOD, "good", "left left"), (OPEN, "open", "left right"), (BAD, "bad", "right right")]
)
def test_an_arm_is_left_of_the_margin_as_far_as_it_is_non_inferior(arm, colour, sides):
    svg = plots.difference_against_margin("d", [GOOD, OPEN, BAD])
    ((margin, _), _), *_ = lines(svg, "stroke-dasharray")
    ((start, _), (end, _)), *_ = lines(svg, f"stroke: var(--{colour}); stroke-width: 2;")
    assert " ".join("left" if x < margin else "right" for x in (start, end)) == sides
    assert start < end


def test_arms_are_named_by_rule_and_what_tells_them_apart():
    drawn = texts(plots.difference_against_margin("d", [GOOD, OPEN, BAD]))
    assert [text for text in drawn if "192" in text or "96" in text] == [
        "padsink-track 192 tau 0.4",
        "96 tau 0",
        "stride 192",
    ]
    assert {"Non-inferior", "Inconclusive", "Inferior"} <= set(drawn)


def test_arms_without_comparison_or_of_an_unknown_verdict_are_not_drawn():
    rows = [replace(GOOD, difference=None), replace(GOOD, verdict="?"), replace(GOOD, bound_upper=None)]
    assert plots.difference_against_margin("d", rows) is None


def test_reexecuted_share_shows_the_rules_that_execute_again_with_their_figures():
    svg = plots.reexecuted_share("r", [GOOD, replace(OPEN, reexecuted_share=0.0), BAD])
    assert [text for text in texts(svg) if text.endswith(" %")] == ["4.3 %", "0.0 %"]
    assert not [text for text in texts(svg) if "stride" in text]
    assert plots.reexecuted_share("r", [BAD]) is None


def test_a_sink_is_one_line_for_as_long_as_it_is_read():
    runs = [Run("reduced", 1, (0, 4), sinks) for sinks in [(), (7, 9), (7,), (7, 9)]]
    track = Track("m", "en", "c", "a", 20, tuple(runs))
    spans = sorted((position, round(a + 0.45), round(b - 0.45)) for position, a, b in plots._sink_lines(track))
    assert spans == [(7, 1, 3), (9, 1, 1), (9, 3, 3)]


@pytest.mark.parametrize("runs", [(), (Run("full", -1, (0, 0), ()),)])
def test_a_track_without_reduced_runs_is_drawn(runs):
    assert "end of the audio" in texts(plots.window_track("t", Track("m", "en", "c", "a", 0, runs)))
