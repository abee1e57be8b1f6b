"""The search for settings: order, where it stops, what it chooses, and its family-wise error."""

import json
import subprocess
import sys
from pathlib import Path

import native_tools as tools
import numpy as np
import pytest
from click.testing import CliRunner

from pyharness import calibrate, models, rules, splits, statistics, sweep
from pyharness.cli import main
from pyharness.errors import HarnessError
from pyharness.rules import Full, PadsinkTrack
from pyharness.speech import Clip

NI, INF, INC = statistics.NON_INFERIOR, statistics.INFERIOR, statistics.INCONCLUSIVE


def summary_row(verdict, reexecuted=0.0, full_share=0.0, wer=0.1):
    columns = (
        *("budget", "sink_fraction", "sinks", "tau", "n", "wer_full", "difference", "bound_upper"),
        *("n_clusters", "clusters", "positions_read", "positions_read_all", "runaway_clips"),
        *("step_ratio", "step_ratio_low", "step_ratio_high", "threads", "clips_needed"),
    )
    values = {"verdict": verdict, "reexecuted_share": reexecuted, "full_share": full_share, "wer": wer}
    return dict.fromkeys(columns, 0) | values


def utterances(cost: dict) -> list[dict]:
    """One clip of ten steps under `full` (1000 us a step) and each arm (its cost times that)."""
    rows = [{"id": "a", "arm": Full().describe(), "steps": 10, "steps_us": 10_000, "reduced": 0}]
    for arm, share in cost.items():
        rows.append({"id": "a", "arm": arm.describe(), "steps": 10, "steps_us": 10_000 * share, "reduced": 10})
    return rows


def choose(verdicts: dict, costs: dict, clips_needed=None, **more):
    arms = (Full(), *verdicts)
    rows = [summary_row(verdict, **more) for verdict in (NI, *verdicts.values())]
    rows = [row | {"clips_needed": clips_needed} for row in rows]
    return calibrate.choose(arms, rows, utterances(costs))


A, B, C = PadsinkTrack(budget=384), PadsinkTrack(budget=192, tau=0.4), PadsinkTrack(budget=192)


def test_candidates_are_tried_from_the_most_expensive_down():
    assert calibrate.in_sequence((Full(), C, A, rules.Stride(), B)) == [A, B, C]


def test_the_search_stops_at_the_first_that_is_not_non_inferior():
    choice = choose({A: NI, B: INC, C: NI}, {A: 0.8, B: 0.7, C: 0.6})
    assert choice.rule == A
    assert [candidate.accepted for candidate in choice.candidates] == [True, False, False]


def test_the_cheapest_accepted_one_is_chosen():
    assert choose({A: NI, B: NI, C: NI}, {A: 0.8, B: 0.7, C: 0.6}).rule == C
    assert choose({A: NI, B: NI, C: INF}, {A: 0.8, B: 0.7, C: 0.6}).rule == B


def test_the_full_cache_is_chosen_when_nothing_is_accepted_or_nothing_is_gained():
    nothing = choose({A: INC, B: NI, C: NI}, {A: 0.8, B: 0.7, C: 0.6})
    assert nothing.rule == Full() and INC in nothing.reason
    assert "about 77 clips" in choose({A: INC}, {A: 0.8}, clips_needed=77).reason
    slow = choose({A: NI, B: NI, C: INF}, {A: 0.99, B: 0.96, C: 0.6})
    assert slow.rule == Full() and "0.96" in slow.reason
    # a third of the steps re-executed eats the whole saving
    assert choose({C: NI}, {C: 0.7}, reexecuted=0.33).rule == Full()
    assert choose({C: NI}, {C: 0.7}, reexecuted=0.2).rule == C


def test_a_model_that_is_of_no_use_for_the_speech_gets_no_view():
    assert choose({A: NI}, {A: 0.8}, wer=0.99).rule == A
    unusable = choose({A: NI}, {A: 0.8}, wer=1.1)
    assert unusable.rule == Full() and "unusable for this speech, its own WER is 110%" in unusable.reason


N_EXPERIMENTS = 300
MOST_WRONG = 0.05 + 3 * np.sqrt(0.05 * 0.95 / N_EXPERIMENTS)


def share_of_wrong_searches(n_true, accepted):
    """Six candidates; from the n_true-th on they are worse by exactly the margin, each with errors of its own, so that
    accepting any of those is an error. ``accepted``: from the verdicts in order, which candidates are."""
    generator = np.random.default_rng(5)
    n_clips, wrong = 150, 0
    arms = tuple(PadsinkTrack(budget=budget) for budget in (64, 96, 128, 192, 256, 384))
    sequence = calibrate.in_sequence(arms)
    for _ in range(N_EXPERIMENTS):
        words = generator.integers(4, 12, n_clips)
        full = generator.binomial(words, 0.1)
        verdicts = {}
        for arm in arms:
            extra = generator.binomial(words, 0.02)  # exactly 0.2 x WER more
            errors = full if sequence.index(arm) < n_true else full + extra
            verdicts[arm] = statistics.non_inferiority(errors, full, words, resamples=400).verdict
        wrong += any(i >= n_true for i in accepted([verdicts[arm] for arm in sequence]))
    return wrong / N_EXPERIMENTS


@pytest.mark.parametrize("n_true", [0, 3])
def test_family_wise_error_stays_at_5_percent(n_true):
    assert share_of_wrong_searches(n_true, lambda verdicts: range(calibrate.accept(verdicts))) <= MOST_WRONG


def test_without_the_sequence_the_family_wise_error_would_not_stay():
    def any_order(verdicts):
        return [i for i, verdict in enumerate(verdicts) if verdict == NI]

    assert share_of_wrong_searches(1, any_order) > 1.3 * MOST_WRONG


def clips(n, speaker=lambda i: "one"):
    return [Clip(f"clip{i}", Path("x.wav"), "text", speaker=speaker(i)) for i in range(n)]


def test_splits_are_disjoint_whole_and_stable():
    few, many = clips(200), clips(400)
    validation, held_out = (splits.split(few, part) for part in splits.PARTS)
    assert sorted(clip.id for clip in validation + held_out) == sorted(clip.id for clip in few)
    assert 60 < len(validation) < 140
    assert [clip for clip in splits.split(many, "validation") if clip in few] == validation
    with pytest.raises(ValueError, match="part"):
        splits.split(few, "test")


def test_a_speaker_falls_into_one_part():
    spoken = clips(300, speaker=lambda i: f"speaker{i % 20}")
    speakers = [{clip.speaker for clip in splits.split(spoken, part)} for part in splits.PARTS]
    assert all(speakers) and not speakers[0] & speakers[1]


@pytest.fixture(scope="module")
def calibrated(tiny_en, tmp_path_factory):
    """A real calibration of tiny.en on twelve clips with two candidates, and its profile."""
    folder = tmp_path_factory.mktemp("calibrated")
    grid = folder / "grid.toml"
    grid.write_text('models = ["x"]\nspeech = ["x"]\n[[arms]]\nrule = "padsink-track"\nbudget = [384, 192]\n')
    profile = folder / "profile.json"
    arguments = ["--model", "tiny.en", "--speech", "asterisk-en", "--clips", "12", "--grid", grid]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "LISTS_CLIPS", 4)
        result = CliRunner().invoke(
            main, ["calibrate", *map(str, [*arguments, "--run", folder / "run", "--out", profile])]
        )
    assert result.exit_code == 0, result.output
    return profile


def pyharness(*arguments, check=True):
    return subprocess.run(
        [sys.executable, "-m", "pyharness", *map(str, arguments)], capture_output=True, text=True, check=check
    )


def test_calibrate_writes_a_profile_with_evidence(calibrated):
    content = json.loads(calibrated.read_text())
    assert content["schema"] == 1 and content["model"]["name"] == "tiny.en" and content["language"] == "en"
    assert content["rule"] in ("full", "padsink-track")
    assert len(content["sink_positions"]) == 128 and set(content["sink_positions"]) <= set(range(1500))
    assert content["alignment_heads"] == [[1, 0], [2, 0], [2, 5], [3, 0], [3, 1], [3, 2], [3, 3], [3, 4]]  # the preset
    evidence = content["evidence"]
    assert evidence["part"] == "validation" and evidence["reason"]
    assert [candidate["budget"] for candidate in evidence["candidates"]] == [384, 192]
    assert {candidate["n"] for candidate in evidence["candidates"]} == {12}


def test_the_split_of_a_manifest_stays_with_the_run(tmp_path, tiny_en):
    clips = tools.clips("asterisk-en", 4)
    manifest, grid, run = tmp_path / "mine.csv", tmp_path / "grid.toml", tmp_path / "run"
    manifest.write_text("audio,text,language\n" + "".join(f'{clip.audio},"{clip.text}",en\n' for clip in clips))
    grid.write_text('[[arms]]\nrule = "padsink-track"\n')
    pyharness(
        *("calibrate", "--model", "tiny.en", "--speech", manifest, "--grid", grid),
        *("--run", run, "--out", tmp_path / "profile.json"),
    )
    split = json.loads((run / "split.json").read_text())
    assert sorted(split) == ["held-out", "validation"] and sum(map(len, split.values())) == 4
    assert not (splits.SPLITS / "mine.json").exists()


def test_the_library_reads_what_calibrate_writes(calibrated, tiny_en):
    result = subprocess.run(
        [
            tools.OURS / "bin" / "whisper-cli",
            "-m",
            tiny_en,
            "-f",
            tools.JFK,
            "-np",
            "--kv-profile",
            calibrated,
            "--kv-stats",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"rule {json.loads(calibrated.read_text())['rule']}" in result.stderr


def test_evaluate_gives_an_outcome_on_other_clips(calibrated, tmp_path):
    content = json.loads(calibrated.read_text()) | {"rule": "padsink-track", "budget": 192}
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(content))
    run = tmp_path / "run"
    result = pyharness(
        *("evaluate", "--profile", profile, "--speech", "asterisk-en", "--clips", "6", "--run", run, "--json")
    )
    assert json.loads(result.stdout)["outcome"] in ("reproduced", "not reproduced", "inconclusive")
    held_out = {json.loads(line)["id"] for line in (run / "utterances.jsonl").read_text().splitlines()}
    validation = {
        json.loads(line)["id"] for line in (calibrated.parent / "run" / "utterances.jsonl").read_text().splitlines()
    }
    assert len(held_out) == 6 and not held_out & validation


def test_a_profile_of_another_model_or_schema_is_refused(calibrated, tmp_path):
    content = json.loads(calibrated.read_text()) | {"rule": "padsink-track", "budget": 192}
    for change, reason in (
        ({"schema": 2}, "schema"),
        ({"budget": 0}, "budget"),
        ({"model": {**content["model"], "sha256": "0" * 64}}, "another model"),
    ):
        profile = tmp_path / "profile.json"
        profile.write_text(json.dumps(content | change))
        result = pyharness(
            *("evaluate", "--profile", profile, "--speech", "asterisk-en", "--clips", "2", "--run", tmp_path / "run"),
            check=False,
        )
        assert result.returncode == 2 and reason in result.stderr, result.stderr
    with pytest.raises(HarnessError, match="cannot read profile"):
        calibrate.read_profile(tmp_path / "missing.json")


def test_a_profile_that_cannot_be_written_is_named_before_anything_is_decoded(tmp_path):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "profile.json"
    result = CliRunner().invoke(main, ["calibrate", "--model", "none", "--speech", "none", "--out", str(out)])
    assert result.exit_code == 2 and f"cannot write '{out}'" in result.output


@pytest.mark.parametrize("command", ["calibrate", "evaluate"])
@pytest.mark.parametrize(
    ("text", "timeout", "reason"),
    [("hello", "0.01", "no clip could be decoded"), ("...", "600", "no reference has a word")],
)
def test_speech_that_gives_nothing_to_compare_is_said(tmp_path, tiny_en, command, text, timeout, reason):
    manifest = tmp_path / "m.jsonl"
    # of these ids, one falls into the validation part and one is held out
    rows = [{"id": i, "audio": str(tools.JFK), "text": text, "language": "en"} for i in ("a", "b", "c", "d")]
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    grid, profile = tmp_path / "grid.toml", tmp_path / "profile.json"
    grid.write_text('[[arms]]\nrule = "padsink-track"\n')
    model = {"name": "tiny.en", "sha256": models.sha256(tiny_en)}
    profile.write_text(json.dumps({"schema": 1, "model": model, "rule": "padsink-track"}))
    arguments = {
        "calibrate": ["--model", "tiny.en", "--grid", grid, "--out", tmp_path / "out.json"],
        "evaluate": ["--profile", profile],
    }[command]
    shared = ["--speech", manifest, "--clips", "1", "--timeout", timeout, "--run", tmp_path / "run"]
    result = CliRunner().invoke(main, [command, *map(str, arguments + shared)])
    assert result.exit_code == 2 and reason in result.output, result.output
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("rule", ["stride", "full"])
def test_a_grid_that_holds_no_candidates_is_refused_before_anything_is_decoded(tmp_path, rule):
    grid = tmp_path / "grid.toml"
    grid.write_text(f'[[arms]]\nrule = "{rule}"\n')
    arguments = ["--model", "none", "--speech", "none", "--grid", grid, "--out", tmp_path / "profile.json"]
    result = CliRunner().invoke(main, ["calibrate", *map(str, arguments)])
    assert result.exit_code == 2 and "must be of rule padsink-track" in result.output


def test_the_lists_of_a_profile():
    content = {"alignment_heads": [[3, 1]], "sink_positions": [1453, 700]}
    assert calibrate.lists_of(content, Path("p.json")) == rules.ModelLists(((3, 1),), (1453, 700))
    assert calibrate.lists_of({"sinks": "first-step"}, Path("p.json")) is None
    with pytest.raises(HarnessError, match=r"p.json.*\[layer, head\]"):
        calibrate.lists_of({"alignment_heads": [3, 1]}, Path("p.json"))


def test_half_the_budget_of_a_profile_for_every_rule():
    calibrated = PadsinkTrack(budget=191, sink_fraction=0.5, lookbehind=0.5, tau=0.3)
    full, *arms = calibrate.half_budget_arms(calibrated, Path("p.json"))
    assert full == Full()
    assert {arm.name for arm in arms} == set(rules.RULES) - {"off", "full", "audio-only"}
    assert {arm.budget for arm in arms} == {95}
    assert PadsinkTrack(budget=95, sink_fraction=0.5, lookbehind=0.5, tau=0.3) in arms
    assert rules.FirstStepSinks(budget=95, sink_fraction=0.5, lookbehind=0.5) in arms
    with pytest.raises(HarnessError, match=r"p.json.*full.*no budget"):
        calibrate.half_budget_arms(Full(), Path("p.json"))
