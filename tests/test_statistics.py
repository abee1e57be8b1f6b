import math

import numpy as np
import pytest

from pyharness.statistics import (
    INCONCLUSIVE,
    INFERIOR,
    NON_INFERIOR,
    non_inferiority,
    non_inferiority_by_clip,
    required_clips,
)

SETS = 1000
MOST_FALSE_VERDICTS = 0.05 + 3 * math.sqrt(0.05 * 0.95 / SETS)


def added_errors(generator, n, wer, ratio=1.2):
    """Clips of 4-12 words; the arm keeps every error of `full` and adds some: expected WER is ratio * wer."""
    words = generator.integers(4, 13, n)
    rate = wer * words * generator.gamma(1.0, 1.0, n)
    full = generator.poisson(rate)
    return full + generator.poisson((ratio - 1) * rate), full, words


def moved_errors(generator, n, wer, ratio=1.2):
    """As above, but the arm also corrects 30 % of the errors of `full` and makes as many others."""
    words = generator.integers(4, 13, n)
    rate = wer * words * generator.gamma(1.0, 1.0, n)
    full = generator.poisson(rate)
    return generator.binomial(full, 0.7) + generator.poisson((ratio - 0.7) * rate), full, words


def one_more_each(generator, n):
    """The arm makes one error more in every clip and `full` five on average: D = margin in expectation."""
    full = generator.poisson(5, n)
    return full + 1, full, np.full(n, 20)


def share(verdict, make, *arguments):
    """Share of SETS simulated data sets that get this verdict."""
    generator = np.random.default_rng(1)
    hits = (
        non_inferiority(*make(generator, *arguments), resamples=400, seed=i).verdict == verdict for i in range(SETS)
    )
    return sum(hits) / SETS


def one_of_two_fails(generator, n):
    """In each clip one of the arms makes errors and the other none: D = margin in expectation, correlation -1."""
    arm_fails = generator.random(n) < 0.5
    return 6 * arm_fails, 5 * ~arm_fails, np.full(n, 20)


def speakers(generator, n_speakers, n_clips):
    """Clips of 20 words; how many errors the arm adds depends on the speaker. D = margin in expectation."""
    rate = np.repeat(2 * generator.gamma(4, 0.25, n_speakers), n_clips)
    more = np.repeat(0.2 * generator.gamma(1, 1, n_speakers), n_clips)
    full = generator.poisson(rate)
    return full + generator.poisson(more * rate), full, np.full(n_speakers * n_clips, 20)


def plain_upper_bound(arm, full, words, resamples=400, unpaired=False, fixed_margin=False):
    """The textbook bootstrap bound of D - margin, with deliberate faults on request."""
    generator = np.random.default_rng(0)
    drawn = generator.integers(len(words), size=(resamples, len(words)))
    other = generator.integers(len(words), size=drawn.shape) if unpaired else drawn
    wer = arm[drawn].sum(1) / words[drawn].sum(1)
    wer_full = full[other].sum(1) / words[other].sum(1)
    margin = 0.2 * (full.sum() / words.sum() if fixed_margin else wer_full)
    return np.quantile(wer - wer_full - margin, 0.95)


def plain_share(make, *arguments, **faults):
    """Share of SETS simulated data sets that the textbook bound, with these faults, calls Non-inferior."""
    generator = np.random.default_rng(1)
    return np.mean([plain_upper_bound(*make(generator, *arguments), **faults) < 0 for _ in range(SETS)])


def test_rates_by_hand():
    verdict = non_inferiority([2, 0, 1], [1, 1, 0], [10, 5, 5])
    assert verdict.n == verdict.n_clusters == 3
    assert verdict.wer == pytest.approx(0.15)
    assert verdict.wer_full == pytest.approx(0.10)
    assert verdict.difference == pytest.approx(0.05)
    assert verdict.margin_absolute == pytest.approx(0.02)


def test_bounds_by_hand():
    # excess -1.2; invented clip +1 above, -1.2 below; two draws from the two clips, 20 words
    verdict = non_inferiority([0], [1], [10])
    assert verdict.bound_upper == pytest.approx((1 + 1) / 20)
    assert verdict.bound_lower == pytest.approx((-1.2 - 1.2) / 20)
    assert verdict.verdict == INCONCLUSIVE


@pytest.mark.parametrize("make", [added_errors, moved_errors])
@pytest.mark.parametrize("wer", [0.01, 0.03, 0.10])
def test_at_the_margin_few_sets_are_called_non_inferior(make, wer):
    assert share(NON_INFERIOR, make, 100, wer) <= MOST_FALSE_VERDICTS


@pytest.mark.parametrize("make", [added_errors, moved_errors])
def test_at_the_margin_few_sets_are_called_inferior(make):
    assert share(INFERIOR, make, 100, 0.10) <= MOST_FALSE_VERDICTS


@pytest.mark.parametrize(
    ("make", "ratio"), [(moved_errors, 0.9), (moved_errors, 1.0), (moved_errors, 1.5), (added_errors, 1.5)]
)
def test_each_bound_covers_the_truth(make, ratio):
    """Of D - margin, away from the margin too."""
    generator = np.random.default_rng(1)
    verdicts = [non_inferiority(*make(generator, 100, 0.1, ratio), resamples=400, seed=i) for i in range(SETS)]
    truth = 0.1 * (ratio - 1.2)
    assert np.mean([verdict.bound_upper < truth for verdict in verdicts]) <= MOST_FALSE_VERDICTS
    assert np.mean([verdict.bound_lower > truth for verdict in verdicts]) <= MOST_FALSE_VERDICTS


def test_plain_percentile_bootstrap_would_fail_the_check():
    assert plain_share(added_errors, 100, 0.01) > 2 * MOST_FALSE_VERDICTS


def test_unpaired_bootstrap_would_fail_the_check():
    """What one arm loses on a clip the other gains: drawn apart, the arms seem to differ less than they do."""
    assert share(NON_INFERIOR, one_of_two_fails, 100) <= MOST_FALSE_VERDICTS
    assert plain_share(one_of_two_fails, 100) <= MOST_FALSE_VERDICTS
    assert plain_share(one_of_two_fails, 100, unpaired=True) > 1.3 * MOST_FALSE_VERDICTS


def test_fixed_margin_would_fail_the_check():
    """D is the same in every clip here, so a margin that is not recomputed leaves no spread: wrong half of the time."""
    assert share(NON_INFERIOR, one_more_each, 100) <= MOST_FALSE_VERDICTS
    assert plain_share(one_more_each, 100) <= MOST_FALSE_VERDICTS
    assert plain_share(one_more_each, 100, fixed_margin=True) > 4 * MOST_FALSE_VERDICTS


def test_ignoring_the_speakers_would_fail_the_check():
    def verdicts(clustered):
        generator = np.random.default_rng(1)
        labels = np.repeat(np.arange(20), 20) if clustered else None
        return [
            non_inferiority(*speakers(generator, 20, 20), clusters=labels, resamples=200, seed=i).verdict
            for i in range(SETS)
        ]

    assert np.mean([verdict == NON_INFERIOR for verdict in verdicts(clustered=True)]) <= MOST_FALSE_VERDICTS
    assert np.mean([verdict == NON_INFERIOR for verdict in verdicts(clustered=False)]) > 1.3 * MOST_FALSE_VERDICTS


def test_clips_are_paired():
    """The arm has the errors of `full`, which differ much between clips: only pairing can see that."""
    generator = np.random.default_rng(2)
    words = np.full(200, 10)
    full = generator.poisson(generator.gamma(0.5, 4.0, 200))
    assert non_inferiority(full, full, words).verdict == NON_INFERIOR
    assert plain_upper_bound(full, full, words, unpaired=True) > 0


def test_swapping_the_arms_turns_the_verdict():
    arm, full, words = added_errors(np.random.default_rng(3), 300, 0.1, ratio=2)
    assert non_inferiority(arm, full, words).verdict == INFERIOR
    assert non_inferiority(full, arm, words).verdict == NON_INFERIOR


def test_runaway_arm_is_inferior_however_long_it_loops():
    full = np.array([0, 1] * 100)
    assert non_inferiority(full + 60, full, np.full(200, 8)).verdict == INFERIOR


def test_one_runaway_clip_prevents_non_inferior():
    full = np.array([0, 1] * 100)
    arm = full.copy()
    arm[0] = 60
    assert non_inferiority(full, full, np.full(200, 8)).verdict == NON_INFERIOR
    assert non_inferiority(arm, full, np.full(200, 8)).verdict == INCONCLUSIVE


def test_arms_without_errors_are_inconclusive():
    verdict = non_inferiority([0] * 500, [0] * 500, [8] * 500)
    assert verdict.verdict == INCONCLUSIVE
    assert verdict.clips_needed is None
    assert verdict.bound_lower <= 0 <= verdict.bound_upper


@pytest.mark.parametrize(("errors", "expected"), [(10, INCONCLUSIVE), (15, INCONCLUSIVE), (20, NON_INFERIOR)])
def test_identical_arms_need_errors_to_compare(errors, expected):
    full = [1] * errors + [0] * (300 - errors)
    verdict = non_inferiority(full, full, [8] * 300)
    assert verdict.difference == 0
    assert verdict.verdict == expected
    assert (verdict.clips_needed is None) == (expected == NON_INFERIOR)


def test_difference_of_exactly_the_margin_is_inconclusive():
    verdict = non_inferiority([6] * 300, [5] * 300, [20] * 300)
    assert verdict.verdict == INCONCLUSIVE
    assert verdict.clips_needed is None


def test_copies_in_one_cluster_add_no_evidence():
    arm, full, words = (np.repeat(counts, 5) for counts in moved_errors(np.random.default_rng(4), 60, 0.2))
    alone = non_inferiority(arm, full, words)
    together = non_inferiority(arm, full, words, clusters=[f"speaker {i // 5}" for i in range(300)])
    assert (together.n, together.n_clusters) == (300, 60)
    assert together.wer == alone.wer
    assert together.bound_upper - together.bound_lower > 1.5 * (alone.bound_upper - alone.bound_lower)


def test_seed_decides_everything():
    data = moved_errors(np.random.default_rng(5), 200, 0.1)
    assert non_inferiority(*data, seed=1) == non_inferiority(*data, seed=1)
    assert non_inferiority(*data, seed=1) != non_inferiority(*data, seed=2)


def test_clips_without_words_are_allowed():
    verdict = non_inferiority([3] + [0] * 99, [0] * 100, [0] * 99 + [1], resamples=1000)
    assert math.isfinite(verdict.bound_upper) and math.isfinite(verdict.bound_lower)


@pytest.mark.parametrize(
    ("arm", "full", "words", "options", "reason"),
    [
        ([], [], [], {}, "no clips"),
        ([1], [1, 0], [5, 5], {}, "equally long"),
        ([1, 0], [1, 0], [5, -1], {}, "words must be"),
        ([-1, 0], [1, 0], [5, 5], {}, "errors_arm must be"),
        ([1, 0], [1, math.nan], [5, 5], {}, "errors_full must be"),
        ([1, 0], [1, 0], [0, 0], {}, "no reference words"),
        ([1, 0], [1, 0], [5, 5], {"clusters": ["a"]}, "clusters names 1"),
        ([1, 0], [1, 0], [5, 5], {"confidence": 1.0}, "confidence"),
        ([1, 0], [1, 0], [5, 5], {"margin": -0.1}, "margin"),
        ([1, 0], [1, 0], [5, 5], {"resamples": 0}, "resamples"),
    ],
)
def test_bad_input_is_refused(arm, full, words, options, reason):
    with pytest.raises(ValueError, match=reason):
        non_inferiority(arm, full, words, **options)


def test_counts_by_clip_are_matched_by_id():
    arm, full, words = {"a": 2, "b": 0, "c": 1}, {"c": 0, "a": 1, "b": 1}, {"b": 5, "a": 10, "c": 5}
    verdict = non_inferiority_by_clip(errors_arm=arm, errors_full=full, words=words, seed=3)
    assert verdict == non_inferiority([2, 0, 1], [1, 1, 0], [10, 5, 5], seed=3)
    speaker = {"c": "x", "b": "y", "a": "x"}
    clustered = non_inferiority_by_clip(errors_arm=arm, errors_full=full, words=words, clusters=speaker)
    assert clustered == non_inferiority([2, 0, 1], [1, 1, 0], [10, 5, 5], clusters=["x", "y", "x"])


@pytest.mark.parametrize("name", ["errors_arm", "errors_full", "words", "clusters"])
def test_a_clip_missing_from_one_side_is_refused(name):
    counts = {key: {"a": 1, "b": 2} for key in ("errors_arm", "errors_full", "words", "clusters")}
    counts[name] = {"a": 1}
    with pytest.raises(ValueError, match=f"{name} lacks 1 of 2 clips, first 'b'"):
        non_inferiority_by_clip(**counts)


def test_arguments_that_could_be_swapped_must_be_named():
    with pytest.raises(TypeError):
        non_inferiority_by_clip({"a": 1}, {"a": 1}, {"a": 9})


def test_required_clips_by_hand():
    z = 1.6448536 + 0.8416212  # quantiles of 95 and 80 %
    assert required_clips(100, statistic=-0.01, spread=0.01) == math.ceil(100 * z**2)
    assert required_clips(100, statistic=0.01, spread=0.02) == math.ceil(100 * (z * 2) ** 2)
    assert required_clips(100, statistic=0.01, spread=0.02, power=0.5) == math.ceil(100 * (1.6448536 * 2) ** 2)
    assert required_clips(100, statistic=0.03, spread=0.01) == 101
    assert required_clips(100, statistic=0.0, spread=0.01) is None
    assert required_clips(100, -0.01, 0.01, invented=0.005) > required_clips(100, -0.01, 0.01)


def test_required_clips_decide_in_four_of_five_cases():
    """Asked for by a sample like the whole: so many fresh ones decide in 80 % of the cases, a third of them seldom."""
    generator = np.random.default_rng(8)
    arm, full, words = moved_errors(generator, 20_000, 0.1, ratio=1.0)
    excess = arm - 1.2 * full
    residuals = excess - excess.sum() / words.sum() * words
    worst = (arm - full)[:300].max() / 100
    shape = np.array([excess.mean(), residuals.std() / 10, worst]) / words.mean()
    needed = required_clips(100, shape[0], shape[1], invented=shape[2])

    def decided(n_clips):
        sets = (moved_errors(generator, n_clips, 0.1, ratio=1.0) for _ in range(200))
        return np.mean([non_inferiority(*counts, resamples=200).verdict == NON_INFERIOR for counts in sets])

    assert 0.7 < decided(needed) < 0.9, needed
    assert decided(needed // 3) < 0.5
