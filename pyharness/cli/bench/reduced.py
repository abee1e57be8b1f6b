"""The reduced arm of a bench of whole clips, and what it is measured on: options, and what they mean."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click

from pyharness import calibrate as calibration
from pyharness import grid as grids
from pyharness import models, rules
from pyharness import sweep as sweeps
from pyharness.cli.bench.options import speech_options, together
from pyharness.cli.budget import Budget
from pyharness.errors import HarnessError
from pyharness.grid import Limits
from pyharness.rules import Rule
from pyharness.sweep import Part

reduced_options = together(
    speech_options,
    click.option("--budget", type=Budget(), help="Of padsink-track.  [default: 192]"),
    click.option("--tau", type=click.FloatRange(0, 1), help="Steps less sure are re-executed.  [default: 0.4]"),
    click.option(
        "--profile",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Decode by this profile, in the way in which it was calibrated, instead of --budget and --tau.",
    ),
)


@dataclass(frozen=True)
class Reduced:
    """An arm, and how clips are decoded for it."""

    arm: Rule
    limits: Limits
    profile: Path | None
    content: dict | None  # of the profile

    @property
    def model(self) -> str:
        """By default."""
        return self.content["model"]["name"] if self.content else "base"

    def parts(
        self,
        names: tuple[str, ...],
        speech: str,
        language: str | None,
        clips: int | None,
        say: Callable,
        needs_text: bool = True,
    ) -> list[Part]:
        """Of the models on the speech; HarnessError unless each can be measured there with this arm."""
        grid = grids.Grid(names, (speech,), (rules.Full(), self.arm), clips, limits=self.limits)
        parts = sweeps.make_plan(grid, language, say).parts
        for part in parts:
            if needs_text and models.is_synthetic(part.model_path):
                raise HarnessError(
                    f"model '{part.model}' has random weights and no text to score: "
                    "use `pyharness bench step`, or `bench decoders --mode synthetic`"
                )
            if self.profile:
                calibration.check_part(self.content, part, self.profile)
        return parts


def reduced(budget: int | None, tau: float | None, profile: Path | None, beam_size: int | None = None) -> Reduced:
    """What the options say."""
    if not profile:
        arm = rules.PadsinkTrack(budget=budget or 192, tau=0.4 if tau is None else tau)
        return Reduced(arm, replace(Limits(), beam_size=beam_size or 1), None, None)
    if budget or tau is not None or beam_size:
        raise HarnessError("give either --profile or --budget and --tau: it says how clips are decoded")
    content = calibration.read_profile(profile)
    return Reduced(calibration.arm_of(content, profile), calibration.limits_of(content, profile), profile, content)
