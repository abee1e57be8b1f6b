"""The rules that choose which positions a reduced step reads, and their hyper-parameters.

One rule = one frozen dataclass; its fields are what a grid file or the command line may set. The choosing itself is
native (``ggml-patch/src/kv-select.cpp``).
"""

import dataclasses
import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pyharness.errors import HarnessError

N_CTX = 1500  # positions of a full cache


@dataclass(frozen=True)
class ModelLists:
    """What a rule may need to know of a model beyond its file: `pyharness heads` finds it, a profile carries it."""

    alignment_heads: tuple[tuple[int, int], ...]  # (layer, head) of those that follow the speech
    sink_positions: tuple[int, ...]  # constant sinks, strongest first


@dataclass(frozen=True)
class Rule:
    """Base of all rules; holds what every reduced step shares."""

    name: ClassVar[str]

    @property
    def plain(self) -> "Rule":
        """The rule and its settings alone, for tables."""
        return self

    def describe(self) -> str:
        """Name and settings, unique among the arms of a run: ``padsink-track budget=192 tau=0.4``."""
        settings = [f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self)]
        return " ".join([self.name, *settings])

    def brief(self) -> str:
        """The same for a reader: the budget, and what is not as by default."""
        settings = [
            f"{field.name}={value!r}"
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default or field.name == "budget"
        ]
        return " ".join([self.name, *settings])


@dataclass(frozen=True)
class Off(Rule):
    """Upstream's attention."""

    name = "off"


@dataclass(frozen=True)
class Full(Rule):
    """All positions, through our kernel: the reference arm."""

    name = "full"


@dataclass(frozen=True)
class AudioOnly(Rule):
    """All audio, no padding."""

    name = "audio-only"


@dataclass(frozen=True)
class Stride(Rule):
    """Evenly spaced positions."""

    name = "stride"
    budget: int = 192  # positions, 1..1500


@dataclass(frozen=True)
class Random(Rule):
    """Positions drawn once with the seed, the same for every clip."""

    name = "random"
    budget: int = 192
    seed: int = 0


@dataclass(frozen=True)
class SinkRecent(Rule):
    """The first rows and the last audio, no tracking."""

    name = "sink-recent"
    budget: int = 192
    sink_fraction: float = 0.25  # share of the budget given to sinks, 0..1


@dataclass(frozen=True)
class FirstStepTop(Rule):
    """Largest attention mass on the first step."""

    name = "first-step-top"
    budget: int = 192


@dataclass(frozen=True)
class FirstStepPooled(Rule):
    """The same, mass averaged over neighbours."""

    name = "first-step-pooled"
    budget: int = 192
    pool: int = 3  # neighbours on each side, 0..64


@dataclass(frozen=True)
class FirstStepSinks(Rule):
    """Sinks and a window, neither moves."""

    name = "first-step-sinks"
    budget: int = 192
    sink_fraction: float = 0.25
    lookbehind: float = 0.25  # share of the window before its centre, 0..1


@dataclass(frozen=True)
class PadsinkTrack(Rule):
    """Sinks and a window that follows the alignment heads; unsure steps are executed again over the full cache."""

    name = "padsink-track"
    budget: int = 192
    sink_fraction: float = 0.25
    lookbehind: float = 0.25
    tau: float = 0.0  # steps less confident than this are re-executed, 0..1; 0 = none, 1 = all
    guard_eot: int = 50  # re-execute an end of text this many positions or more before the audio's end; -1 = off
    guard_runaway: float = 25.0  # steps past 16 + this many tokens per second read everything; 0 = off
    sinks: str = "first-step"  # from the first step of the clip; or "model": constant ones, from its ModelLists


@dataclass(frozen=True)
class Profile(Rule):
    """An arm of `evaluate`: everything a profile sets, its lists included, as the library reads it."""

    rule: Rule  # what it chooses
    path: Path
    sha256: str  # of the file

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def plain(self) -> Rule:
        return self.rule

    def describe(self) -> str:
        return f"{self.rule.describe()} profile={self.sha256[:12]}"


RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        Off,
        Full,
        AudioOnly,
        Stride,
        Random,
        SinkRecent,
        FirstStepTop,
        FirstStepPooled,
        FirstStepSinks,
        PadsinkTrack,
    )
}

RANGES = {
    "budget": (1, N_CTX),
    "sink_fraction": (0, 1),
    "lookbehind": (0, 1),
    "tau": (0, 1),
    "guard_eot": (-1, N_CTX),
    "guard_runaway": (0, 1e6),
    "pool": (0, 64),
    "seed": (0, 2**31 - 1),
}
CHOICES = {"sinks": ("first-step", "model")}


def make(name: str, **settings) -> Rule:
    """The rule ``name`` with the given settings; HarnessError for unknown names and values out of range."""
    if name not in RULES:
        close = difflib.get_close_matches(name, RULES, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else f" Known rules: {', '.join(RULES)}."
        raise HarnessError(f"unknown rule '{name}'.{hint}")
    rule = RULES[name]
    known = {field.name: field.type for field in dataclasses.fields(rule)}
    for key, value in settings.items():
        if key not in known:
            has = ", ".join(known) or "none"
            raise HarnessError(f"rule '{name}' has no setting '{key}' (it has: {has})")
        settings[key] = _checked(key, value, known[key])
    return rule(**settings)


def pick(name: str, settings: dict) -> Rule:
    """The rule ``name`` with those of the settings that it has; what else is in the dictionary is of others."""
    own = {field.name for field in dataclasses.fields(RULES[name])} if name in RULES else ()
    return make(name, **{key: value for key, value in settings.items() if key in own})


def _checked(key: str, value, kind: type):
    if key in CHOICES:
        if value not in CHOICES[key]:
            raise HarnessError(f"{key} must be {' or '.join(CHOICES[key])}, not {value!r}")
        return value
    low, high = RANGES[key]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # written so that NaN fails, too
    if not is_number or not low <= value <= high or (kind is int and value != int(value)):
        raise HarnessError(
            f"{key} must be {'an integer' if kind is int else 'a number'} from {low} to {high}, not {value!r}"
        )
    return kind(value)
