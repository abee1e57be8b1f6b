"""How a budget is given on the command line, the same as whisper-cli takes it."""

import math

import click

from pyharness.rules import N_CTX


class Budget(click.ParamType):
    """Positions, or their share of a full cache: ``192`` or ``12.5%``."""

    name = "N|P%"

    def convert(self, value, param, ctx):
        if isinstance(value, int):
            return value
        try:
            positions = float(value.removesuffix("%"))
        except ValueError:
            positions = math.nan
        if value.endswith("%") and math.isfinite(positions):
            positions = math.floor(positions / 100 * N_CTX + 0.5)
        if not 1 <= positions <= N_CTX or positions != int(positions):
            self.fail(f"{value}: expected 1 to {N_CTX} positions, or a share of them like 12.5%", param, ctx)
        return int(positions)
