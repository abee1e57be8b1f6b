"""pyharness evaluate: decodes with exactly what the profile sets, and has an answer for every profile."""

import json

import native_tools as tools
import pytest
from click.testing import CliRunner

from pyharness import audio, models, rules
from pyharness.cli import main
from pyharness.cli.evaluate import _how_many
from pyharness.grid import Limits
from pyharness.native import Decoding, Model


@pytest.fixture
def profile(tmp_path, tiny_en):
    """Writes a profile of tiny.en with the given settings."""

    def write(**settings):
        path = tmp_path / "profile.json"
        model = {"name": "tiny.en", "sha256": models.sha256(tiny_en), "n_text_layer": 4}
        path.write_text(json.dumps({"schema": 1, "model": model, "language": "en", **settings}))
        return path

    return write


def evaluate(path, *more):
    run = path.parent / "run"
    arguments = ["--profile", path, "--speech", "asterisk-en", "--clips", "3", "--jobs", "1", "--run", run, *more]
    return CliRunner().invoke(main, ["evaluate", *map(str, arguments)])


# heads that stand still and sinks that are none: what a text decoded with them shows is that they were used
LISTS = {
    "rule": "padsink-track",
    "budget": 64,
    "sinks": "model",
    "sink_positions": [1499, 1498, 1497],
    "alignment_heads": [[0, 0]],
}


def test_the_lists_of_the_profile_decode_the_clips(profile, tiny_en):
    path = profile(**LISTS)
    result = evaluate(path, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["budget"] == 64 and json.loads(result.stdout)["rule"] == "padsink-track"
    rows = [json.loads(line) for line in (path.parent / "run" / "utterances.jsonl").read_text().splitlines()]
    mine = [row for row in rows if "profile=" in row["arm"]]
    assert len(mine) == 3
    with Model(tiny_en) as model, model.state() as state:
        for row in mine:
            samples = audio.load(row["audio_filepath"])
            decoding = Decoding(max_tokens=Limits().max_tokens(len(samples) / audio.SAMPLE_RATE))
            state.set_profile(path)
            state.reset_counters()
            assert state.transcribe(samples, decoding).text == row["pred_text"]
            assert state.counters().n_rows_read == row["rows_read"]
            state.set_view(rules.PadsinkTrack(budget=64))  # the same without the lists reads something else
            state.reset_counters()
            state.transcribe(samples, decoding)
            assert state.counters().n_rows_read != row["rows_read"]


def test_clips_are_decoded_as_the_profile_was_calibrated(profile, tiny_en):
    settings = {"beam_size": 2, "threads": 1, "tokens_per_second": 9, "timestamps": True, "margin": 0.2}
    path = profile(rule="padsink-track", evidence={"settings": settings})
    assert evaluate(path).exit_code == 0
    used = json.loads((path.parent / "run" / "run.json").read_text())["settings"]
    assert {key: used[key] for key in settings} == settings
    rows = [json.loads(line) for line in (path.parent / "run" / "utterances.jsonl").read_text().splitlines()]
    with Model(tiny_en) as model, model.state() as state:
        for row in rows:
            state.set_view(rules.Full()) if row["arm"] == "full" else state.set_profile(path)
            samples = audio.load(row["audio_filepath"])
            max_tokens = int(8 + 9 * len(samples) / audio.SAMPLE_RATE)
            decoding = Decoding(beam_size=2, timestamps=True, max_tokens=max_tokens)
            assert len(state.transcribe(samples, decoding).tokens) == row["tokens"]


@pytest.mark.parametrize(
    ("needed", "wer_full", "text"), [(40, 0.1, "about 40"), (None, 0.0, "no error"), (None, 0.1, "exactly the margin")]
)
def test_an_inconclusive_outcome_says_what_would_decide_it(needed, wer_full, text):
    assert text in _how_many({"clips_needed": needed, "wer_full": wer_full})


def test_a_changed_profile_is_another_arm(profile):
    assert evaluate(profile(**LISTS)).exit_code == 0
    result = evaluate(profile(**LISTS | {"sink_positions": [1400]}))
    assert result.exit_code == 2 and "(arms)" in result.output


def test_a_profile_of_the_full_cache_has_nothing_to_compare(profile, tmp_path):
    result = evaluate(profile(rule="full"))
    assert result.exit_code == 0
    assert result.stdout == "nothing to compare: the profile chooses the full cache\n"
    assert json.loads(evaluate(profile(rule="full"), "--json").stdout) == {"outcome": "nothing to compare"}
    assert not (tmp_path / "run").exists()


def test_a_profile_of_the_full_cache_is_checked_like_any_other(profile):
    path = profile(rule="full")
    content = json.loads(path.read_text())
    for change, reason in (
        ({"model": content["model"] | {"sha256": "0" * 64}}, "another model"),
        ({"language": "ru"}, "was made for language 'ru', not 'en'"),
        ({"model": {"name": 5}}, "does not name its model"),
        ({"evidence": None}, "'evidence'"),
        ({"evidence": {"candidates": [1]}}, "'evidence'"),
        ({"evidence": {"speech": ["x"]}}, "'speech'"),
        ({"evidence": {"settings": {"beam_size": 9}}}, "beam_size"),
        ({"evidence": {"settings": 5}}, "'settings'"),
        ({"budgt": 5}, "unknown key 'budgt'"),
        ({"rule": "ful"}, "full"),
        ({"rule": ["full"]}, "'rule'"),
    ):
        path.write_text(json.dumps(content | change))
        result = evaluate(path)
        assert result.exit_code == 2 and reason in result.output, result.output


def test_settings_of_any_rule_are_those_of_the_library(profile, tiny_en):
    """A profile and the rule it names read the same: what neither sets has one default."""
    samples = audio.load(tools.JFK)[: 2 * audio.SAMPLE_RATE]  # so short that the runaway guard could act
    for rule in (rules.AudioOnly(), rules.Stride(budget=64), rules.PadsinkTrack(budget=128)):
        read = []
        with Model(tiny_en) as model, model.state() as state:
            for set_view in (
                lambda state=state, rule=rule: state.set_view(rule),
                lambda state=state, rule=rule: state.set_profile(profile(rule=rule.name, **vars(rule))),
                lambda state=state, rule=rule: state.set_profile(
                    profile(rule=rule.name, **({"budget": rule.budget} if hasattr(rule, "budget") else {}))
                ),
            ):
                set_view()
                state.reset_counters()
                tokens = state.transcribe(samples, Decoding()).tokens
                read.append((tokens, state.counters().n_rows_read, state.counters().n_full_runaway))
        assert read[0] == read[1] == read[2], rule


def test_the_arm_of_a_profile_is_named_by_its_rule_and_its_file(profile):
    arm = rules.Profile(rules.Full(), profile(rule="full"), "abc")
    assert (arm.name, arm.describe()) == ("full", "full profile=abc")


def test_sweep_at_half_the_budget(profile, tmp_path):
    path = profile(rule="padsink-track", budget=128)
    arguments = ["sweep", "--halve", str(path), "--clips", "2", "--jobs", "1", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 and "does not name its speech" in result.output
    result = CliRunner().invoke(main, [*arguments, "--speech", "asterisk-en", "--models", "tiny.en"])
    assert result.exit_code == 2 and "leave --grid and --models out" in result.output
    result = CliRunner().invoke(main, [*arguments, "--speech", "asterisk-en"])
    assert result.exit_code == 0, result.output
    assert "still Non-inferior at half the budget: " in result.stdout
    rows = json.loads((tmp_path / "run" / "summary.json").read_text())["rows"]
    assert len(rows) == 8 and {row["budget"] for row in rows} == {None, 64}
