"""The sweep: every arm on every clip of every model and speech set, then one honest row per arm."""

import dataclasses
import datetime
import hashlib
import json
import os
import platform
import shlex
import statistics as stdlib_statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import pyharness
from pyharness import ggml_file, heads, models, native, rules, runner, scoring, speech, splits, statistics
from pyharness.errors import HarnessError
from pyharness.grid import Grid
from pyharness.native import Model
from pyharness.rules import ModelLists, PadsinkTrack, Rule
from pyharness.rundir import RunDirectory
from pyharness.runner import Task
from pyharness.speech import Clip

# summed over the clips: what kind of word errors, and in which script the words are (Uzbek has two)
COUNTS = ("substitutions", "deletions", "insertions", "latin_words", "cyrillic_words", "other_words")

# columns of a part none of whose clips could be decoded
NOT_MEASURED = {"n": 0} | dict.fromkeys(
    (
        *("wer", "wer_full", "difference", "bound_upper", "bound_lower", "verdict", "clips_needed"),
        *("n_clusters", "clusters", "cer", "cer_full", *COUNTS),
        *("positions_read", "positions_read_all", "reexecuted_share", "full_share", "runaway_clips"),
        *("step_ratio", "step_ratio_low", "step_ratio_high"),
    )
)
REFERENCE = dict.fromkeys(("difference", "bound_upper", "bound_lower", "verdict", "clips_needed"))
LISTS_CLIPS = 25  # that the lists of a model are found on


@dataclass(frozen=True)
class Part:
    """One model on one speech set."""

    model: str
    model_path: Path
    model_sha256: str
    speech: str
    clips: list[Clip]
    clips_sha256: str  # of what the clips are: digest()
    strip_diacritics: bool
    lists: ModelLists | None  # of the model, where an arm needs them
    split: str | None  # which part of the speech set the clips are of: "validation", "held-out", None = the whole set

    @property
    def language(self) -> str:
        return self.clips[0].language

    def watched(self, clip_id: str | None) -> Clip | None:
        """The clip of this id, if it is here; without one, that whose window has the longest way to go."""
        if clip_id is None:
            return max(self.clips, key=lambda clip: clip.duration)
        return next((clip for clip in self.clips if clip.id == clip_id), None)

    @property
    def normaliser(self) -> str:
        """Name and version of the normaliser that scores the part."""
        return scoring.normaliser(self.language, self.strip_diacritics).name


@dataclass(frozen=True)
class Plan:
    grid: Grid
    parts: list[Part]
    build: dict[str, str]  # native.build_info()

    def tasks(self, timeout: float | None = None) -> list[Task]:
        """Clip by clip within a part, so that a worker seldom changes its model."""
        watched = [part.watched(self.grid.watch) for part in self.parts]
        return [
            Task(
                i,
                part.model,
                part.model_path,
                part.speech,
                clip,
                self.grid.arms,
                self.grid.limits,
                timeout or default_timeout(clip, len(self.grid.arms)),
                part.lists,
                part.strip_diacritics,
                watched=clip is shown,
            )
            for part, shown in zip(self.parts, watched, strict=True)
            for i, clip in enumerate(part.clips)
        ]


def default_timeout(clip: Clip, n_arms: int) -> float:
    """Seconds that a clip may take under all arms: far more than a large model needs on a slow core."""
    return (60 + 30 * clip.duration) * n_arms


# --- plan -------------------------------------------------------------------------------------------------------------


def make_plan(
    grid: Grid,
    language: str | None,
    say: Callable[[str], None],
    part: str | None = None,
    lists: ModelLists | None = None,
    wants_lists: bool = False,
) -> Plan:
    """Fetch what is missing and check everything that can be checked before the first clip.

    ``language`` is for manifests that do not state one; ``part``: only the clips of this part of the split; ``lists``
    of the models are found if an arm needs them or they are wanted, and not given.
    """
    for key, flag in (("models", "--models"), ("speech", "--speech")):
        if not getattr(grid, key):
            raise HarnessError(f"no {key}: name them in the grid or with {flag}")
    build = native.build_info()
    paths = {name: models.resolve(name) for name in grid.models}
    sets = {name: _clips(name, grid, language, part, say) for name in grid.speech}
    digests = {name: digest(clips) for name, clips in sets.items()}
    parts = []
    for model, path in paths.items():
        model_sha256 = models.sha256(path)
        english_only = ggml_file.read_hparams(path).n_vocab < 51865
        for name, clips in sets.items():
            if english_only and clips[0].language != "en":
                say(f"{model} knows English only: skipping {name}")
                continue
            strip = speech.strip_diacritics(name)
            parts.append(Part(model, path, model_sha256, name, clips, digests[name], strip, lists, part))
    if not parts:
        raise HarnessError("nothing to do: no model of the sweep knows the language of its speech")
    if grid.watch and not any(part.watched(grid.watch) for part in parts):
        raise HarnessError(f"--watch: no clip of this run has the id '{grid.watch}'")
    if not lists and (wants_lists or any(map(_needs_lists, grid.arms))):
        parts = _with_lists(parts, grid, language, say)
    _check_models(parts, grid.arms)
    return Plan(grid, parts, build)


def _needs_lists(arm: Rule) -> bool:
    return isinstance(arm, PadsinkTrack) and arm.sinks == "model"


def _with_lists(parts: list[Part], grid: Grid, language: str | None, say: Callable[[str], None]) -> list[Part]:
    """The parts with the lists of their models, found on validation clips of the first speech set of each: on such as
    the run does not decode, if there are any."""
    found: dict[str, ModelLists] = {}
    for part in parts:
        if part.model not in found:
            validation = _clips(part.speech, dataclasses.replace(grid, clips=None), language, "validation", say)
            decoded = {clip.id for clip in part.clips}
            clips = [clip for clip in validation if clip.id not in decoded] or validation
            clips = speech.sample(clips, LISTS_CLIPS, grid.seed)
            say(f"{part.model}: finding its constant sinks on {len(clips)} clips of {part.speech}")
            found[part.model] = heads.find(part.model_path, clips).lists
    return [dataclasses.replace(part, lists=found[part.model]) for part in parts]


def _clips(name: str, grid: Grid, language: str | None, part: str | None, say: Callable[[str], None]) -> list[Clip]:
    _, clips = speech.resolve(name)
    if part:
        clips = splits.split(clips, part)
        if not clips:
            raise HarnessError(f"speech '{name}' has no clip in its {part} part")
    if grid.clips is not None:
        clips = speech.sample(clips, grid.clips, grid.seed)
    if language and all(clip.language for clip in clips):
        say(f"{name} states its language: --language {language} is not used")
    languages = {clip.language or language for clip in clips}
    if None in languages:
        raise HarnessError(f"speech '{name}' does not state its language: give --language")
    if len(languages) > 1:
        raise HarnessError(f"speech '{name}' mixes languages ({', '.join(sorted(languages))}): one set, one language")
    return [Clip(**{**clip.__dict__, "language": clip.language or language}) for clip in clips]


def _check_models(parts: list[Part], arms: tuple[Rule, ...]) -> None:
    """HarnessError unless every model knows the languages of its parts and takes every arm."""
    for path in dict.fromkeys(part.model_path for part in parts):
        with Model(path) as model:
            for part in parts:
                if part.model_path == path and not model.knows_language(part.language):
                    raise HarnessError(
                        f"model '{part.model}' does not know the language '{part.language}' of speech '{part.speech}'"
                    )
            lists = next(part.lists for part in parts if part.model_path == path)
            for arm in arms:
                try:
                    model.check_view(arm, lists)
                except HarnessError as error:
                    raise HarnessError(f"model '{path}': {error.message}") from error


def digest(clips: list[Clip]) -> str:
    """Of the clips' texts and recordings. A file that cannot be read will give an error row, so it is no error here."""
    entries = []
    for clip in clips:
        try:
            recording = models.sha256(clip.audio)
        except OSError:
            recording = "unreadable"
        entries.append([clip.id, clip.text, clip.language, clip.cluster, recording])
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


# --- configuration ----------------------------------------------------------------------------------------------------


def config(plan: Plan, jobs: int) -> dict:
    """What run.json holds: everything needed to do it again."""
    grid = plan.grid
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["pyharness", *sys.argv[1:]]),
        "version": pyharness.__version__,
        "models": [
            {"name": name, "path": str(path), "sha256": sha256}
            for name, path, sha256 in sorted({(p.model, p.model_path, p.model_sha256) for p in plan.parts})
        ],
        "lists": {part.model: asdict(part.lists) for part in plan.parts if part.lists},
        "speech": [
            {
                "name": part.speech,
                "language": part.language,
                "part": part.split,
                "n": len(part.clips),
                "synthetic": any(clip.synthetic for clip in part.clips),
                "minutes": round(sum(clip.duration for clip in part.clips) / 60, 2),
                "clips_sha256": part.clips_sha256,
                "normaliser": part.normaliser,
            }
            for part in {part.speech: part for part in plan.parts}.values()
        ],
        "settings": {
            **asdict(grid.limits),
            "decoding": "greedy" if grid.limits.beam_size == 1 else f"beam {grid.limits.beam_size}",
            "temperature_fallback": False,
            "language": "that of the speech set, fixed",
            "seed": grid.seed,
            "margin": statistics.MARGIN,
            "resamples": statistics.RESAMPLES,
        },
        "arms": [arm.describe() for arm in grid.arms],
        "jobs": jobs,
        "threads": grid.limits.threads,
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "build": _build_name(plan),
        "native": plan.build,
        "python": platform.python_version(),
    }


def identity(plan: Plan) -> dict:
    """What decides the results; the names are those that a refusal to mix runs shows the user."""
    return {
        "models": [[part.model, part.model_sha256] for part in plan.parts],
        "sinks": [part.lists and asdict(part.lists) for part in plan.parts],
        "clips": [[part.speech, part.clips_sha256] for part in plan.parts],
        "normaliser": [part.normaliser for part in plan.parts],
        "arms": [arm.describe() for arm in plan.grid.arms],
        "settings": asdict(plan.grid.limits),
        "build": plan.build["sha256"],
    }


def _build_name(plan: Plan) -> str:
    return f"libwhisper {plan.build['sha256'][:8]}"


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


# --- run --------------------------------------------------------------------------------------------------------------


def run(
    plan: Plan,
    folder: Path,
    jobs: int,
    advance: Callable[[int], None],
    say: Callable[[str], None],
    timeout: float | None = None,
    run_tasks: Callable[[list[Task], int], Iterator[list[dict]]] = runner.run,
) -> list[dict]:
    """Do what is left to do in ``folder`` and return the rows of the summary. ``advance(n)`` reports n clips done;
    ``timeout``: seconds that a clip may take; ``run_tasks(tasks, jobs)``: where, see runner.py and cluster.py."""
    with RunDirectory(folder, config(plan, jobs), identity(plan)) as directory:
        tasks = plan.tasks(timeout)
        done = directory.done()
        left = [task for task in tasks if task.key not in done]
        if done:
            say(
                f"{folder}: complete; nothing decoded, these are the results of {directory.date}"
                if not left
                else f"{folder}: continuing; {len(done)} of {len(tasks)} clips are done"
            )
        advance(len(done))
        for rows in run_tasks(left, jobs):
            directory.append(rows)
            advance(1)
        summary = summarise(plan, directory.rows, jobs)
        directory.write_summary({"rows": summary})
        return summary


def summarise(plan: Plan, rows: list[dict], jobs: int) -> list[dict]:
    """One row per model, language and arm, in the order of the plan."""
    by_arm: dict[tuple, dict[str, dict]] = {}
    for row in rows:
        by_arm.setdefault((row["model"], row["speech"], row["arm"]), {})[row["id"]] = row
    summary = []
    for part in plan.parts:
        arms = [by_arm[part.model, part.speech, arm.describe()] for arm in plan.grid.arms]
        ids = [clip.id for clip in part.clips if all("error" not in arm[clip.id] for arm in arms)]
        for rule, arm in zip(plan.grid.arms, arms, strict=True):
            mine, full = [arm[i] for i in ids], [arms[0][i] for i in ids]
            summary.append(
                {
                    "model": part.model,
                    "language": part.language,
                    "speech": part.speech,
                    "synthetic": any(clip.synthetic for clip in part.clips),
                    **_rule_columns(rule),
                    "failed_clips": len(part.clips) - len(ids),
                    **NOT_MEASURED,
                    **(_measured(mine, full) if ids else {}),
                    **(REFERENCE if rule == plan.grid.arms[0] else {}),  # it is not compared with itself
                    "threads": plan.grid.limits.threads,
                    "jobs": jobs,
                    "build": _build_name(plan),
                }
            )
    return summary


def _rule_columns(rule: Rule) -> dict:
    rule = rule.plain
    return {
        "rule": rule.name,
        "budget": getattr(rule, "budget", None),
        "sink_fraction": getattr(rule, "sink_fraction", None),
        "tau": getattr(rule, "tau", None),
        "sinks": getattr(rule, "sinks", None),
    }


def _measured(mine: list[dict], full: list[dict]) -> dict:
    """Columns that compare one arm with the reference on the same clips."""
    scored = [i for i, row in enumerate(full) if row["reference_words"] > 0]
    steps = sum(row["steps"] for row in mine)
    steps_and_prompts = steps + sum(row["prompts"] for row in mine)
    view_runs = sum(row["view_runs"] for row in mine)
    positions = sum(row["positions"] for row in mine)
    return {
        **_quality([mine[i] for i in scored], [full[i] for i in scored]),
        "empty_references": len(mine) - len(scored),
        "positions_read": sum(row["positions_view"] for row in mine) / view_runs if view_runs else rules.N_CTX,
        "positions_read_all": positions / steps_and_prompts if steps_and_prompts else rules.N_CTX,
        "reexecuted_share": sum(row["reexecuted"] for row in mine) / steps if steps else 0.0,
        "full_share": sum(row["full"] for row in mine) / steps if steps else 0.0,
        "runaway_clips": sum(row["runaway"] for row in mine),
        "empty_outputs": sum(not row["pred_text"] for row in mine),
        "same_text": sum(a["pred_text"] == b["pred_text"] for a, b in zip(mine, full, strict=True)),
        **_step_ratio(mine, full),
    }


def _quality(mine: list[dict], full: list[dict]) -> dict:
    words = [row["reference_words"] for row in full]
    if not words:
        return {}
    clusters = {row["id"]: row["cluster"] for row in full}
    kind = clusters_are(full)
    verdict = statistics.non_inferiority_by_clip(
        errors_arm={row["id"]: _errors(row) for row in mine},
        errors_full={row["id"]: _errors(row) for row in full},
        words={row["id"]: row["reference_words"] for row in full},
        clusters=None if kind == "clip" else clusters,
    )
    return {
        "n": verdict.n,
        "wer": verdict.wer,
        "wer_full": verdict.wer_full,
        "difference": verdict.difference,
        "bound_upper": verdict.bound_upper,
        "bound_lower": verdict.bound_lower,
        "verdict": verdict.verdict,
        "clips_needed": verdict.clips_needed,
        "n_clusters": verdict.n_clusters,
        "clusters": kind,
        **{key: sum(row[key] for row in mine) for key in COUNTS},
        "cer": _cer(mine),
        "cer_full": _cer(full),
    }


def clusters_are(rows: list[dict]) -> str:
    """What the bootstrap resamples: "speaker", "recording" or "clip". One speaker alone says nothing about others, so
    then the clips stand for more of the same speaker."""
    n_clusters = len({row["cluster"] for row in rows})
    if n_clusters in (1, len(rows)):
        return "clip"
    return "speaker" if any(row["speaker"] for row in rows) else "recording"


def _cer(rows: list[dict]) -> float | None:
    characters = sum(row["characters"] for row in rows)
    return sum(row["character_errors"] for row in rows) / characters if characters else None


def _errors(row: dict) -> int:
    return row["substitutions"] + row["deletions"] + row["insertions"]


def _step_ratio(mine: list[dict], full: list[dict]) -> dict:
    """Median over the clips of (time per step / time per step of `full` on the same clip), with quartiles."""
    ratios = [
        (a["steps_us"] / a["steps"]) / (b["steps_us"] / b["steps"])
        for a, b in zip(mine, full, strict=True)
        if a["steps"] and b["steps"] and b["steps_us"]
    ]
    if not ratios:
        return {"step_ratio": None, "step_ratio_low": None, "step_ratio_high": None}
    low, high = np.percentile(ratios, [25, 75])
    return {
        "step_ratio": stdlib_statistics.median(ratios),
        "step_ratio_low": float(low),
        "step_ratio_high": float(high),
    }
