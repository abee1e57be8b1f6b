"""Calibration: from a model and validation speech to a profile with its evidence; evaluation on held-out speech.

Candidates stand in a fixed order, the most expensive first. All are decoded; then they are tested in that order and
the testing ends at the first that is not Non-inferior, so that the chance of accepting any inferior one stays at 5 %
without a correction (fixed-sequence testing, Maurer, Hothorn & Lehmacher 1995). Among the accepted ones the cheapest
is chosen, if it beats the full cache by at least 5 % (speed condition); otherwise the choice is the full cache.
"""

import json
import operator
import statistics as stdlib_statistics
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path

from pyharness import ggml_file, models, rules, statistics
from pyharness import grid as grids
from pyharness.errors import HarnessError
from pyharness.grid import Limits
from pyharness.rules import ModelLists, PadsinkTrack, Rule
from pyharness.rundir import write_json
from pyharness.sweep import Part

SCHEMA = 1
SPEED_CONDITION = 0.95  # expected cost of a step, relative to the full cache, that a choice must reach


@dataclass(frozen=True)
class Candidate:
    """One candidate's row of the summary, and what a step of it costs relative to the full cache."""

    rule: Rule
    row: dict
    reduced_cost: float  # a step that is not re-executed
    accepted: bool  # by the fixed sequence

    @property
    def expected_cost(self) -> float:
        """A re-executed step costs its reduced run and a full one."""
        return self.reduced_cost + self.row["reexecuted_share"] + self.row["full_share"] * (1 - self.reduced_cost)


@dataclass(frozen=True)
class Choice:
    rule: Rule
    reason: str
    candidates: list[Candidate]


def in_sequence(arms: tuple[Rule, ...]) -> list[PadsinkTrack]:
    """Candidates from the most expensive downwards: by budget, then tau, then what costs the same. The order must not
    depend on data."""
    candidates = [arm for arm in arms if isinstance(arm, PadsinkTrack)]
    order = operator.attrgetter("budget", "tau", "sink_fraction", "lookbehind", "sinks")
    return sorted(candidates, key=order, reverse=True)


def accept(verdicts: list[str]) -> int:
    """How many of the leading candidates the fixed sequence accepts."""
    for i, verdict in enumerate(verdicts):
        if verdict != statistics.NON_INFERIOR:
            return i
    return len(verdicts)


def check_candidates(arms: tuple[Rule, ...], where: Path) -> None:
    """HarnessError unless all arms but the reference are candidates."""
    others = [arm.name for arm in arms if not isinstance(arm, PadsinkTrack | rules.Full)]
    if others or not in_sequence(arms):
        wrong = f"rule '{others[0]}' has no profile" if others else "there is none"
        raise HarnessError(f"grid '{where}': candidates must be of rule padsink-track; {wrong}")


def choose(arms: tuple[Rule, ...], summary: list[dict], utterances: list[dict]) -> Choice:
    """Decide from a finished run over validation speech: ``summary`` in the order of ``arms``, and its raw rows."""
    row_of = dict(zip(arms, summary, strict=True))
    sequence = in_sequence(arms)
    n_accepted = accept([row_of[arm]["verdict"] for arm in sequence])
    candidates = [
        Candidate(arm, row_of[arm], _reduced_cost(arm, utterances), i < n_accepted) for i, arm in enumerate(sequence)
    ]
    wer_full = summary[0]["wer"]
    if wer_full >= 1:
        reason = f"full cache: the model is unusable for this speech, its own WER is {wer_full:.0%}"
        return Choice(rules.Full(), reason, candidates)
    return Choice(*_decide(candidates), candidates)


def _decide(candidates: list[Candidate]) -> tuple[Rule, str]:
    """Which rule, and why."""
    accepted = [candidate for candidate in candidates if candidate.accepted]
    if not accepted:
        return rules.Full(), f"full cache: the most expensive candidate was not accepted; {_stopped_by(candidates)}"
    best = min(accepted, key=lambda candidate: candidate.expected_cost)
    if best.expected_cost > SPEED_CONDITION:
        reason = (
            f"full cache: the cheapest accepted candidate ({best.rule.brief()}) is expected to cost "
            f"{best.expected_cost:.2f} of a full step, more than {SPEED_CONDITION}"
        )
        return rules.Full(), reason
    reason = (
        f"cheapest of {len(accepted)} accepted candidates: {best.expected_cost:.2f} of a full step, "
        f"{best.row['reexecuted_share']:.1%} re-executed; {_stopped_by(candidates)}"
    )
    return best.rule, reason


def _stopped_by(candidates: list[Candidate]) -> str:
    """The candidate at which the testing ended."""
    rejected = next((candidate for candidate in candidates if not candidate.accepted), None)
    if not rejected:
        return "no candidate was rejected"
    text = f"{rejected.rule.brief()} is {rejected.row['verdict']}"
    if rejected.row["clips_needed"]:
        text += f", about {rejected.row['clips_needed']} clips like these would decide it"
    return text


def _reduced_cost(arm: Rule, utterances: list[dict]) -> float:
    """Median over the clips without any full step of (time per step / time per step of `full` on the same clip)."""
    full = {row["id"]: row for row in utterances if row["arm"] == rules.Full().describe() and "error" not in row}
    ratios = [
        (row["steps_us"] / row["steps"]) / (full[row["id"]]["steps_us"] / full[row["id"]]["steps"])
        for row in utterances
        if row["arm"] == arm.describe()
        and "error" not in row
        and row["steps"] > 0
        and row["reduced"] == row["steps"]
        and full[row["id"]]["steps"] > 0
    ]
    return stdlib_statistics.median(ratios) if ratios else 1.0


# --- profile ----------------------------------------------------------------------------------------------------------


def profile(part: Part, choice: Choice, config: dict) -> dict:
    """What the library reads (see ggml-patch/src/kv-profile.cpp) plus the evidence for it."""
    hparams = ggml_file.read_hparams(part.model_path)
    chosen = next((candidate for candidate in choice.candidates if candidate.rule == choice.rule), None)
    return {
        "schema": SCHEMA,
        "model": {
            "name": part.model,
            "sha256": part.model_sha256,
            "n_text_layer": hparams.n_text_layer,
            "n_text_head": hparams.n_text_head,
            "n_text_state": hparams.n_text_state,
            "n_vocab": hparams.n_vocab,
        },
        "language": part.language,
        "rule": choice.rule.name,
        **vars(choice.rule),
        "sink_positions": part.lists.sink_positions,
        "alignment_heads": part.lists.alignment_heads,
        "evidence": {
            "reason": choice.reason,
            "speech": part.speech,
            "part": "validation",
            "synthetic": any(clip.synthetic for clip in part.clips),
            **(_evidence(chosen) if chosen else {}),
            "candidates": [_evidence(candidate) for candidate in choice.candidates],
            **{key: config[key] for key in ("date", "command", "cpu", "build", "settings")},
        },
    }


def _evidence(candidate: Candidate) -> dict:
    columns = (
        *("budget", "sink_fraction", "sinks", "tau", "n", "failed_clips", "wer", "wer_full", "difference"),
        *("bound_upper", "verdict"),
        *("n_clusters", "clusters", "positions_read", "positions_read_all", "reexecuted_share", "runaway_clips"),
        *("step_ratio", "step_ratio_low", "step_ratio_high", "threads", "clips_needed"),
    )
    return {
        "lookbehind": candidate.rule.lookbehind,
        **{key: candidate.row[key] for key in columns},
        "expected_cost": round(candidate.expected_cost, 4),
        "accepted": candidate.accepted,
    }


def prepare_profile(path: Path) -> None:
    """Make its folder. HarnessError if a file cannot be written there: better said before the decoding than after."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise HarnessError(f"cannot write '{path}': {error.strerror}") from error


def write_profile(path: Path, content: dict) -> None:
    write_json(path, content)


def read_profile(path: Path) -> dict:
    """The content, whose parts have the types that its readers expect. HarnessError naming the file otherwise."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HarnessError(f"cannot read profile '{path}': {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise HarnessError(f"profile '{path}' is no valid JSON: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise HarnessError(f"profile '{path}' is not of schema {SCHEMA}")
    model, evidence = content.get("model"), content.get("evidence", {})
    if not isinstance(model, dict) or not isinstance(model.get("name"), str):
        raise HarnessError(f"profile '{path}' does not name its model")
    for key in ("rule", "language"):
        if not isinstance(content.get(key, ""), str):
            raise HarnessError(f"profile '{path}': '{key}' must be a name")
    candidates = evidence.get("candidates", []) if isinstance(evidence, dict) else None
    if not isinstance(candidates, list) or not all(isinstance(candidate, dict) for candidate in candidates):
        raise HarnessError(f"profile '{path}': 'evidence' is not what calibrate writes")
    if not isinstance(evidence.get("speech", ""), str):
        raise HarnessError(f"profile '{path}': the evidence's 'speech' must be a name")
    return content


def rule_of(content: dict, path: Path) -> Rule:
    """The rule that a profile chooses, with those of the profile's settings that are the rule's own."""
    try:
        return rules.pick(content.get("rule", "padsink-track"), content)
    except HarnessError as error:
        raise HarnessError(f"profile '{path}': {error.message}") from error


def limits_of(content: dict, path: Path) -> Limits:
    """The decoding settings that a profile was calibrated with; the default ones if it does not say."""
    settings = content.get("evidence", {}).get("settings", {})
    try:
        return grids.limits_of({field.name: settings[field.name] for field in fields(Limits) if field.name in settings})
    except (HarnessError, TypeError) as error:
        raise HarnessError(f"profile '{path}': the evidence's 'settings': {error}") from error


def lists_of(content: dict, path: Path) -> ModelLists | None:
    """The lists that a profile carries; None if it has none."""
    if not content.get("sink_positions") and not content.get("alignment_heads"):
        return None
    try:
        heads = tuple((int(layer), int(head)) for layer, head in content.get("alignment_heads") or ())
        return ModelLists(heads, tuple(map(int, content.get("sink_positions") or ())))
    except (TypeError, ValueError) as error:
        raise HarnessError(f"profile '{path}': its lists must hold integers and [layer, head] pairs") from error


# --- half the budget --------------------------------------------------------------------------------------------------


def half_budget_arms(rule: Rule, path: Path) -> tuple[Rule, ...]:
    """`full`, and every rule at half the budget of the calibrated one; what they share with it, they take from it."""
    budget = getattr(rule, "budget", 0) // 2
    if not budget:
        raise HarnessError(f"profile '{path}' chooses {rule.describe()}: it has no budget to halve")
    settings = vars(rule) | {"budget": budget}
    return rules.Full(), *(rules.pick(name, settings) for name, kind in rules.RULES.items() if hasattr(kind, "budget"))


def still_non_inferior(rows: list[dict]) -> list[str]:
    """The rules of a summary that are Non-inferior."""
    return [row["rule"] for row in rows if row["verdict"] == statistics.NON_INFERIOR]


# --- evaluation -------------------------------------------------------------------------------------------------------


def arm_of(content: dict, path: Path) -> rules.Profile:
    """The arm that decodes as a program does that loads the profile."""
    return rules.Profile(rule_of(content, path), path.resolve(), models.sha256(path))


def check_part(content: dict, part: Part, path: Path) -> None:
    """HarnessError unless the profile was made for this very model file and for this language."""
    wanted = content["model"].get("sha256")
    if wanted != part.model_sha256:
        raise HarnessError(
            f"profile '{path}' was made for another model: sha256 {str(wanted)[:12]}, "
            f"that of '{part.model_path}' is {part.model_sha256[:12]}"
        )
    language = content.get("language", part.language)
    if language != part.language:
        raise HarnessError(f"profile '{path}' was made for language '{language}', not '{part.language}'")


def outcome(row: dict) -> str:
    """Does held-out speech confirm the profile? ``row``: its arm in the summary of the held-out run."""
    return {
        statistics.NON_INFERIOR: "reproduced",
        statistics.INFERIOR: "not reproduced",
        statistics.INCONCLUSIVE: "inconclusive",
    }[row["verdict"]]
