"""pyharness profiles: the table says what each profile chooses and what held-out speech said of it."""

import json

import pytest
from click.testing import CliRunner
from test_report import row

from pyharness import native, paths, profiles, rules
from pyharness.cli import main
from pyharness.table import points


@pytest.fixture
def profile(tmp_path):
    """Writes a profile and, with a verdict, its held-out run."""

    def write(name, verdict=None, evidence=None, **settings):
        content = {"schema": 1, "model": {"name": "base"}, "language": "en", "evidence": evidence or {}, **settings}
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content))
        if verdict:
            folder = tmp_path / "evidence" / name
            folder.mkdir(parents=True)
            rows = [
                row("full", budget=None, sink_fraction=None, tau=None),
                row(verdict=verdict, budget=128, tau=0.3, sinks="first-step", positions_read_all=301),
            ]
            (folder / "summary.json").write_text(json.dumps({"rows": rows}))
        return path

    return write


def table(*files):
    result = CliRunner().invoke(main, ["profiles", "--markdown", *map(str, files)])
    assert result.exit_code == 0, result.output
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.output.splitlines() if "|" in line]
    return lines[0], lines[2:], result.output


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [("Non-inferior", "reproduced"), ("Inferior", "not reproduced"), ("Inconclusive", "inconclusive")],
)
def test_a_profile_stands_with_what_held_out_speech_said(profile, verdict, outcome):
    candidates = [{"n": 150, "wer_full": 0.08}]
    evidence = {"reason": "cheapest of 9", "candidates": candidates}
    path = profile("base-en", verdict, evidence, rule="padsink-track", budget=128, tau=0.3)
    header, [cells], output = table(path)
    assert cells[:4] == ["base-en", "150", "8.00 %", "padsink-track budget=128 tau=0.3"]
    assert outcome in cells and "301" in cells and points(-0.0012) in cells
    assert len(cells) == len(header) and "- base-en: cheapest of 9" in output


def test_the_full_cache_synthetic_speech_and_a_missing_verdict_are_said(profile):
    full = profile("a", rule="full", evidence={"reason": "full cache: why", "synthetic": True})
    open_ = profile("b", rule="padsink-track", budget=96)
    _, lines, output = table(full, open_)
    assert lines[0][0] == "a*" and lines[0][3] == "full" and "nothing to confirm" in lines[0]
    assert "not evaluated" in lines[1]
    assert "- a: full cache: why" in output and "* calibrated on synthetic speech" in output


def test_speed_stands_with_error_rate_n_spread_threads_and_build(profile):
    header, [cells], _ = table(profile("c", "Non-inferior", rule="padsink-track", budget=128, tau=0.3))
    assert cells[header.index("step time")] == "×0.66 (0.63–0.70)"
    assert cells[-2:] == ["1", "1.8.5+padsink avx512"] and "2.31 %" in cells and "312" in cells


@pytest.mark.parametrize("other", [{"budget": 96}, {"tau": 0.4}, {"sinks": "model"}, {"rule": "stride"}])
def test_what_was_measured_for_other_settings_is_no_evidence(profile, other):
    path = profile("base-en", "Non-inferior", **{"rule": "padsink-track", "budget": 128, "tau": 0.3} | other)
    _, [cells], _ = table(path)
    assert "evidence is of other settings" in cells and "reproduced" not in cells


@pytest.mark.parametrize("path", sorted((paths.REPOSITORY / "calibration").glob("*.json")), ids=lambda path: path.stem)
def test_committed_profiles_are_read_by_the_library_and_have_evidence_of_their_own(path):
    entry = profiles.read(path)
    assert entry.n and not entry.stray and (entry.rule == rules.Full() or entry.held_out)
    library, message = native.library(), native.ffi.new("char[200]")
    params = native._sized("struct whisper_kv_view_params")
    code = library.whisper_kv_view_load_profile(native.ffi.NULL, str(path).encode(), params, message, 200)
    assert code == 0, native.ffi.string(message)
    assert params.budget == getattr(entry.rule, "budget", params.budget) and params.n_sink_pos == 128


def test_broken_evidence_is_named(profile, tmp_path):
    path = profile("d", "Inferior")
    (tmp_path / "evidence" / "d" / "summary.json").write_text("[")
    result = CliRunner().invoke(main, ["profiles", str(path)])
    assert result.exit_code == 2 and "summary.json" in result.output
