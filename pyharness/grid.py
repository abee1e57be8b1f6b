"""What a sweep compares: models, speech and arms, read from a TOML file (``calibration/default.toml``)."""

import dataclasses
import itertools
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pyharness import paths, rules
from pyharness.errors import HarnessError
from pyharness.rules import Rule

DEFAULT = paths.REPOSITORY / "calibration" / "default.toml"


@dataclass(frozen=True)
class Limits:
    """Decoding settings that a grid may set."""

    beam_size: int = 1  # 1 = greedy; 1..8
    threads: int = 1  # of each worker process; 1..512
    tokens_per_second: float = 8  # 1..1000
    timestamps: bool = False  # whether the model is to say when segments begin and end

    def max_tokens(self, seconds: float) -> int:
        """Tokens a clip of this length may have; one that wants more runs away and is stopped."""
        return int(8 + self.tokens_per_second * seconds)


@dataclass(frozen=True)
class Grid:
    models: tuple[str, ...]
    speech: tuple[str, ...]
    arms: tuple[Rule, ...]  # the first one is `full`, the reference
    clips: int | None = None  # of each speech set; None = all
    seed: int = 0
    limits: Limits = Limits()
    watch: str | None = None  # id of the clip whose window the report shows; None = the longest of each part


def load(path: Path) -> Grid:
    """Read a grid file. HarnessError names the file, the place and the reason."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return _grid(table)
    except OSError as error:
        raise HarnessError(f"cannot read grid '{path}': {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise HarnessError(f"grid '{path}' is no valid TOML: {error}") from error
    except HarnessError as error:
        raise HarnessError(f"grid '{path}': {error.message}") from error


def _grid(table: dict) -> Grid:
    _only(table, {"models", "speech", "clips", "seed", "decoding", "arms"}, "the file")
    grid = Grid(
        models=_names(table, "models"),
        speech=_names(table, "speech"),
        arms=_arms(table.get("arms", [])),
        clips=_integer(table, "clips", 1, None),
        seed=_integer(table, "seed", 0, 0),
        limits=limits_of(table.get("decoding", {})),
    )
    if not table.get("arms"):
        raise HarnessError("there is no [[arms]] table: nothing to compare")
    return grid


def _only(table: dict, known: set[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise HarnessError(f"unknown key '{unknown[0]}' in {where} (known: {', '.join(sorted(known))})")


def _names(table: dict, key: str) -> tuple[str, ...]:
    if key not in table:  # the command line may name them
        return ()
    names = table[key]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise HarnessError(f"'{key}' must be a list of names")
    return tuple(names)


def _integer(table: dict, key: str, low: int, default):
    value = table.get(key, default)
    if value is default:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise HarnessError(f"'{key}' must be an integer of at least {low}, not {value!r}")
    return value


def limits_of(table: dict) -> Limits:
    """The limits of a [decoding] table. HarnessError names the key that is wrong."""
    if not isinstance(table, dict):
        raise HarnessError("decoding must be written as one [decoding] table")
    ranges = {"beam_size": (1, 8), "threads": (1, 512), "tokens_per_second": (1, 1000)}
    _only(table, {*ranges, "timestamps"}, "[decoding]")
    if not isinstance(table.get("timestamps", False), bool):
        raise HarnessError(f"'timestamps' must be true or false, not {table['timestamps']!r}")
    for key in ranges.keys() & table.keys():
        value, (low, high) = table[key], ranges[key]
        kind, name = (int | float, "a number") if key == "tokens_per_second" else (int, "an integer")
        if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
            raise HarnessError(f"'{key}' must be {name} from {low} to {high}, not {value!r}")
    return Limits(**table)


def _arms(tables: list) -> tuple[Rule, ...]:
    """All arms, each once, with the reference arm `full` in front."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise HarnessError("arms must be written as [[arms]] tables")
    arms = [rules.Full()]
    for table in tables:
        arms += [arm for arm in _product(table) if arm not in arms]
    return tuple(arms)


def _product(table: dict) -> list[Rule]:
    if not isinstance(table.get("rule"), str):
        raise HarnessError('an arm needs rule = "NAME"')
    settings = {key: value if isinstance(value, list) else [value] for key, value in table.items() if key != "rule"}
    if not all(settings.values()):
        raise HarnessError(f"an arm of rule '{table['rule']}' has a setting without values")
    return [
        rules.make(table["rule"], **dict(zip(settings, values, strict=True)))
        for values in itertools.product(*settings.values())
    ]


def override(grid: Grid, **changes) -> Grid:
    """The grid with what the command line gives instead (None = not given)."""
    return dataclasses.replace(grid, **{key: value for key, value in changes.items() if value is not None})
