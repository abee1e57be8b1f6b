"""``bench decoders``: n decoders at once on one loaded model, each with its own state and clip, one thread each.

*synthetic*: all are fed for a number of steps with the tokens that stock finds most probable behind their clips
(stepper.py). No step is re-executed for being unsure: behind the end of a text all steps are.
*real*: all transcribe their clips. Stock cannot encode once and decode many times, so every arm encodes; the decoders
wait for each other behind the encoder, and the time is that from there to the text. Clips differ in length: towards the
end fewer decoders are at work, in every arm alike. Each round has the next clips.

A *wave* is one go of all decoders (crew.py). In a round every arm does the same steps, or the same clips, so that the
ratio of two waves' times is that of their throughputs.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pyharness import rules, speech
from pyharness.bench import crew
from pyharness.bench.clips import Decoded, decoding_of, readable, score, text_columns
from pyharness.bench.crew import Wave
from pyharness.bench.environment import build_names, environment
from pyharness.bench.libraries import STOCK, Arm, Library, both, peak_mb
from pyharness.bench.paired import interleave, median_with_interval, ratios
from pyharness.bench.quality import NOT_COMPARED, compare
from pyharness.errors import HarnessError
from pyharness.grid import Limits
from pyharness.rules import Rule
from pyharness.speech import Clip
from pyharness.sweep import Part

SYNTHETIC, REAL = "synthetic", "real"
NO_STEPS = {"steps": None, "same_tokens": None}  # columns of the other mode
NO_TEXTS = {"clips": None, "wer": None, "same_text": None, **NOT_COMPARED}
WINDOW = 30  # seconds: a longer clip is encoded in several parts


@dataclass(frozen=True)
class Settings:
    part: Part  # the model and all clips to choose from
    rule: Rule  # of the reduced arm
    limits: Limits  # of every arm that transcribes; its threads are not used
    decoders: tuple[int, ...] = (1, 2, 4, 8, 16)
    modes: tuple[str, ...] = (SYNTHETIC, REAL)
    rounds: int = 6  # waves of each arm
    steps: int = 24  # of each decoder in a synthetic wave

    def arms(self, mode: str) -> tuple[Arm, ...]:
        reduced = without_tau(self.rule) if mode == SYNTHETIC else self.rule
        return STOCK, *map(Arm, dict.fromkeys((rules.Full(), reduced)))  # a profile may choose the full cache

    @property
    def n_waves(self) -> int:
        return len(self.decoders) * self.rounds * sum(len(self.arms(mode)) for mode in self.modes)


def without_tau(rule: Rule) -> Rule:
    """The rule where no step is unsure. Sinks are those of the first step, which are as many as a profile's own."""
    plain = rule.plain
    return replace(plain, tau=0.0, sinks="first-step") if isinstance(plain, rules.PadsinkTrack) else plain


def run(settings: Settings, advance: Callable[[int], None], say: Callable[[str], None]) -> dict:
    """{"env": ..., "rows": [...]}; ``advance(n)`` reports n waves done, of ``settings.n_waves``."""
    wanted = _wanted(settings)
    clips = readable(wanted, say)
    with both() as libraries:
        env = environment("decoders", libraries, (crew.THREADS,))
    env |= {"beam_size": settings.limits.beam_size, "timestamps": settings.limits.timestamps}
    rows = []
    for n in settings.decoders:
        for mode, measure in (SYNTHETIC, _feed), (REAL, _transcribe):
            if mode in settings.modes:
                with both() as libraries:  # new ones, so that their peak memory is that of n decoders
                    group = _Group(settings, libraries, clips, n, advance)
                    rows += _rows(group, mode, *measure(group), build_names(env), len(wanted) - len(clips))
    return {"env": env, "rows": rows}


def _wanted(settings: Settings) -> list[Clip]:
    """As many as all rounds of the most decoders take, if there are."""
    clips = [clip for clip in settings.part.clips if clip.duration <= WINDOW]
    if not clips:
        raise HarnessError(f"speech '{settings.part.speech}' has no clip of {WINDOW} s or less")
    return speech.sample(clips, settings.rounds * max(settings.decoders), seed=0)


@dataclass(frozen=True)
class _Group:
    """n decoders in each library."""

    settings: Settings
    libraries: dict[str, Library]
    clips: list[Clip]
    n: int
    advance: Callable[[int], None]

    def __post_init__(self):
        for library in self.libraries.values():
            library.call(crew.gather, self.settings.part.model_path, self.settings.part.language, self.n)

    def ask(self, arm: Arm, function: Callable, *args):
        return self.libraries[arm.library].call(function, arm.rule, *args)

    def deal(self, i: int) -> list[Clip]:
        """The clips of round i, over and over again."""
        return [self.clips[j % len(self.clips)] for j in range(i * self.n, (i + 1) * self.n)]


def _feed(group: _Group) -> tuple[dict[Arm, list[Wave]], dict[Arm, dict]]:
    """Waves of every arm in synthetic steps, and columns that say how right they were."""
    settings = group.settings
    for library in group.libraries.values():
        library.call(crew.encode, [clip.audio for clip in group.deal(0)])
    chosen = group.libraries[STOCK.library].call(crew.choose, settings.steps + 1)
    tokens, wanted = [one[:-1] for one in chosen], [one[1:] for one in chosen]
    quality = {}
    for arm in settings.arms(SYNTHETIC):
        same = float(np.mean(np.equal(group.ask(arm, crew.follow, tokens), wanted)))
        quality[arm] = {"steps": settings.steps, "same_tokens": same, **NO_TEXTS}

    def one_wave(arm: Arm) -> Wave:
        wave = group.ask(arm, crew.time_steps, tokens)
        group.advance(1)
        return wave

    return interleave(settings.arms(SYNTHETIC), settings.rounds, one_wave), quality


def _transcribe(group: _Group) -> tuple[dict[Arm, list[Wave]], dict[Arm, dict]]:
    """The same in real decoding."""
    settings, arms = group.settings, group.settings.arms(REAL)
    waves = {arm: [] for arm in arms}
    decoded = {arm: defaultdict(list) for arm in arms}  # by clip: each time that it was dealt

    def one_wave(arm: Arm, clips: list[Clip]) -> Wave:
        decoding = [decoding_of(clip, settings.limits, crew.THREADS) for clip in clips]
        return group.ask(arm, crew.transcribe, [clip.audio for clip in clips], decoding)

    for arm in {arm.library: arm for arm in arms}.values():  # warm up
        one_wave(arm, group.deal(0))
    for i in range(settings.rounds):
        clips = group.deal(i)
        for arm, [wave] in interleave(arms, 1, partial(one_wave, clips=clips), first=i).items():
            waves[arm].append(wave)
            for clip, text, ms in zip(clips, wave.texts, wave.ms, strict=True):
                decoded[arm][clip].append(Decoded(text, ms))
        group.advance(len(arms))
    return waves, _quality(settings.part, decoded)


def _quality(part: Part, decoded: dict[Arm, dict[Clip, list[Decoded]]]) -> dict[Arm, dict]:
    """Of all clips, each of which counts once, however often it was dealt."""
    clips = list(decoded[STOCK])
    scored = {arm: [score(clip, mine[clip], part.strip_diacritics) for clip in clips] for arm, mine in decoded.items()}
    return {
        arm: {
            **NO_STEPS,
            "clips": len(clips),
            **text_columns(mine, scored[STOCK]),
            **(NOT_COMPARED if arm == STOCK else compare(mine, scored[STOCK], clips)),
        }
        for arm, mine in scored.items()
    }


def _rows(
    group: _Group,
    mode: str,
    waves: dict[Arm, list[Wave]],
    quality: dict[Arm, dict],
    builds: dict[str, str],
    n_failed: int,
) -> list[dict]:
    """One row per arm."""
    part = group.settings.part
    return [
        {
            "model": part.model,
            "speech": part.speech,
            "threads": crew.THREADS,
            "n": group.n,
            "mode": mode,
            **arm.columns(),
            **_columns(waves[arm], waves[STOCK]),
            **quality[arm],
            "failed_clips": n_failed,
            "peak_mb": group.libraries[arm.library].call(peak_mb),
            "rounds": group.settings.rounds,
            "build": builds[arm.library],
        }
        for arm in waves
    ]


def _columns(mine: list[Wave], stock: list[Wave]) -> dict:
    to_stock = median_with_interval(ratios([wave.seconds for wave in stock], [wave.seconds for wave in mine]))
    latency = median_with_interval(ratios([_p50(wave) for wave in mine], [_p50(wave) for wave in stock]))
    ms = [ms for wave in mine for ms in wave.ms]
    return {
        "tokens_per_s": float(np.median([wave.n_tokens / wave.seconds for wave in mine])),
        "clips_per_s": float(np.median([len(wave.texts) / wave.seconds for wave in mine])) or None,
        "p50_ms": float(np.median(ms)),
        "p90_ms": float(np.quantile(ms, 0.9)),
        "max_ms": max(ms),
        "ratio_to_stock": to_stock.median,
        "ratio_low": to_stock.low,
        "ratio_high": to_stock.high,
        "latency_ratio": latency.median,
        "latency_low": latency.low,
        "latency_high": latency.high,
        "reexecuted": float(np.mean([wave.reexecuted for wave in mine])),
    }


def _p50(wave: Wave) -> float:
    return float(np.median(wave.ms))
