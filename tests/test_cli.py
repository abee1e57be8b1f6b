"""What commands share: how a budget is written, and one line for a disk that does not take what they write."""

import click
import pytest
from click.testing import CliRunner

from pyharness.cli import main
from pyharness.cli.budget import Budget


@pytest.mark.parametrize(
    ("text", "positions"), [("192", 192), ("192.0", 192), ("10%", 150), ("12.5%", 188), ("100%", 1500), ("0.1%", 2)]
)
def test_budgets_are_positions_or_a_share_of_them(text, positions):
    assert Budget().convert(text, None, None) == positions


@pytest.mark.parametrize(
    "text", ["0", "1501", "-1", "1.5", "nan", "inf", "0%", "101%", "nan%", "inf%", "%", "many", ""]
)
def test_other_budgets_are_refused_with_the_range(text):
    with pytest.raises(click.BadParameter, match="expected 1 to 1500 positions"):
        Budget().convert(text, None, None)


def test_a_home_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    home = tmp_path / "file"
    home.write_text("")
    monkeypatch.setenv("PADSINK_HOME", str(home))
    result = CliRunner().invoke(main, ["models", "synth", "tiny"])
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert str(home) in result.output and len(result.output.splitlines()) == 1
