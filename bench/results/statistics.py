"""Pure statistics of runs: intervals of ratios, adjustments, outliers, drift and the number of blocks needed.

Times and throughputs are positive and their noise is multiplicative, so ratios are judged on the log scale and
their means are geometric. Every interval is a Student t interval, never a bootstrap: at 5 to 10 runs a bootstrap's
nominal 95 % covers far less than that.

A figure that the data do not carry is None, never NaN or inf: an interval needs at least two values.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # scipy.stats, which takes a second, is imported when it is first used

_ROUNDING = 1e-12
"""Logs that spread less than this differ by the rounding of a float, not by noise."""


@dataclass(frozen=True)
class Interval:
    """A ratio with its confidence interval; above 1 the first argument is larger.

    `low`, `high` and `p` (two-sided, of ratio = 1) are None where there are too few values for them. `n` is the
    number of pairs, or of runs on the smaller side.
    """

    ratio: float
    low: float | None
    high: float | None
    p: float | None
    n: int

    @property
    def half_width(self) -> float | None:
        """Half the width on the log scale, about the relative uncertainty; None without an interval."""
        if self.low is None or self.high is None or self.low <= 0:
            return None
        return (math.log(self.high) - math.log(self.low)) / 2

    @property
    def excludes_one(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 1 or self.high < 1)


@dataclass(frozen=True)
class Drift:
    """A trend over the campaign: `percent` is the change of the value from the first run to the last."""

    percent: float
    p: float
    n: int


def _logs(values: Iterable[float]) -> np.ndarray:
    array = np.asarray(list(values), dtype=float)
    if not np.all(np.isfinite(array)) or np.any(array <= 0):
        raise ValueError("a ratio needs finite values above 0")
    return np.log(array)


def _exp(value: float) -> float | None:
    """exp, or None where the result is too large for a float."""
    return math.exp(value) if value < 709 else None


def _interval(log_ratio: float, low: float, high: float, p: float, n: int) -> Interval:
    ends = (_exp(low), _exp(high))
    if None in ends:
        ends = (None, None)
    return Interval(math.exp(min(log_ratio, 709)), ends[0], ends[1], p, n)


def _exact(log_ratio: float, n: int) -> Interval:
    """The interval where nothing varies: a single point, at 1 exactly where it is 1 up to rounding."""
    same = abs(log_ratio) <= _ROUNDING
    ratio = 1.0 if same else math.exp(min(log_ratio, 709))
    return Interval(ratio, ratio, ratio, 1.0 if same else 0.0, n)


def paired_log_ratio(
    numerators: Sequence[float], denominators: Sequence[float], *, confidence: float = 0.95
) -> Interval:
    """Geometric mean of numerator / denominator over pairs, with the paired t interval on log ratios.

    `paired_interval` of the logs. Raises ValueError without pairs, or for values that are not above 0.
    """
    return paired_interval(list(_logs(numerators)), list(_logs(denominators)), confidence=confidence)


def paired_interval(first: Sequence[float], second: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """The same from logs: pass log ratios and zeros where only ratios are known.

    exp(mean(d) ± t(1 - (1 - confidence) / 2, n - 1) · s(d) / √n) with d = first - second: the interval of
    `scipy.stats.ttest_rel`, exponentiated (Student, "The probable error of a mean", 1908). One pair gives the ratio
    alone. Raises ValueError without pairs.
    """
    if len(first) != len(second) or not len(first):
        raise ValueError(f"{len(first)} numerators for {len(second)} denominators")
    differences, n = np.subtract(first, second), len(first)
    mean = float(np.mean(differences))
    if n < 2:
        return Interval(_exact(mean, n).ratio, None, None, None, n)
    if np.ptp(differences) <= _ROUNDING:
        return _exact(mean, n)
    test = scipy.stats.ttest_rel(first, second)
    ends = test.confidence_interval(confidence)
    return _interval(mean, float(ends.low), float(ends.high), float(test.pvalue), n)


def welch_log_ratio(new: Sequence[float], base: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """Ratio of geometric means new / base of two independent sets, with Welch's t interval on logs.

    `scipy.stats.ttest_ind(equal_var=False)`, exponentiated (Welch, "The generalization of Student's problem when
    several different population variances are involved", 1947). One value on a side gives the ratio alone.
    """
    if not len(new) or not len(base):
        raise ValueError("a ratio needs at least one value on each side")
    first, second = _logs(new), _logs(base)
    log_ratio = float(np.mean(first) - np.mean(second))
    n = min(len(first), len(second))
    if n < 2:
        return Interval(_exact(log_ratio, n).ratio, None, None, None, n)
    if max(np.ptp(first), np.ptp(second)) <= _ROUNDING:
        return _exact(log_ratio, n)
    test = scipy.stats.ttest_ind(first, second, equal_var=False)
    ends = test.confidence_interval(confidence)
    return _interval(log_ratio, float(ends.low), float(ends.high), float(test.pvalue), n)


def mann_whitney(new: Sequence[float], base: Sequence[float]) -> float | None:
    """Two-sided p of the rank-sum test, which assumes no distribution (Mann and Whitney, 1947).

    None under 2 values on a side; 1 where all values are equal.
    """
    if min(len(new), len(base)) < 2:
        return None
    if np.ptp(np.concatenate([new, base])) == 0:
        return 1.0
    return float(scipy.stats.mannwhitneyu(new, base, alternative="two-sided").pvalue)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusted p for each p, in their order; None stays None and is not counted among the tests.

    The i-th smallest of m (i from 0) becomes the running maximum of (m - i) · p, at most 1 (Holm, "A simple
    sequentially rejective multiple test procedure", 1979). Rejecting at alpha keeps the family's error at alpha.
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        adjusted[place] = largest
    return adjusted


def median(values: Sequence[float]) -> float | None:
    """The middle value, or the mean of the two in the middle; None without values."""
    return float(np.median(values)) if len(values) else None


def geometric_mean(values: Sequence[float]) -> float | None:
    """exp(mean(log value)), the right mean of ratios; None without values."""
    return float(np.exp(np.mean(_logs(values)))) if len(values) else None


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Sample standard deviation (n - 1) / mean; None under 2 values or at mean 0."""
    if len(values) < 2 or np.mean(values) == 0:
        return None
    return float(np.std(values, ddof=1) / np.mean(values))


def modified_z(values: Sequence[float]) -> list[float]:
    """How far each value lies from the median, in robust standard deviations.

    0.6745 · (x - median) / MAD, where MAD is the median absolute deviation; above 3.5 in size is an outlier
    (Iglewicz and Hoaglin, "How to detect and handle outliers", 1993). Where more than half the values are equal
    MAD is 0 and (x - median) / (1.253314 · mean absolute deviation) stands in, as is usual for it.
    """
    array = np.asarray(values, dtype=float)
    if not len(array):
        return []
    deviations = array - np.median(array)
    spread = float(np.median(np.abs(deviations))) / 0.6745 or float(np.mean(np.abs(deviations))) * 1.253314
    return [0.0] * len(array) if spread == 0 else [float(z) for z in deviations / spread]


def blocks_needed(deviation: float, target: float, *, confidence: float = 0.95, limit: int = 10_000) -> int | None:
    """Fewest blocks whose predicted t half-width on the log scale is at most `target`.

    The smallest n of at least 2 with t(1 - (1 - confidence) / 2, n - 1) · s / √n <= target, where s is the deviation.
    None where it would take more than `limit`.
    """
    if target <= 0:
        raise ValueError(f"the target is a half-width above 0, such as 0.01, not {target}")
    counts = np.arange(2, limit + 1)
    widths = scipy.stats.t.ppf((1 + confidence) / 2, counts - 1) * deviation / np.sqrt(counts)
    enough = np.flatnonzero(widths <= target)
    return int(counts[enough[0]]) if len(enough) else None


def moderated_deviations(pilots: Sequence[Sequence[float]]) -> list[float]:
    """Standard deviations of several pilots of at least 2 log ratios each, drawn towards what they have in common.

    s² becomes (2 · p² + (n - 1) · s²) / (2 + n - 1), where p² is the variance pooled over all pilots: the form of
    Smyth, "Linear models and empirical Bayes methods", 2004, with a fixed prior of two degrees of freedom. Of many
    pilots of three the largest own s is far too large, and a forecast from it was too long by a factor of two.
    """
    freedom = np.array([len(pilot) - 1 for pilot in pilots], dtype=float)
    own = np.array([np.var(pilot, ddof=1) for pilot in pilots])
    pooled = float(np.sum(freedom * own) / np.sum(freedom))
    return [float(value) for value in np.sqrt((2 * pooled + freedom * own) / (2 + freedom))]


def drift(values: Sequence[float], order: Sequence[float], cells: Sequence[object]) -> Drift | None:
    """The order effect over a campaign: log value on order, each cell with its own mean.

    Ordinary least squares of log(value) = mean of its cell + slope · order. Both sides are centred within cells,
    which gives the same slope as one indicator a cell (Frisch and Waugh, 1933); the residuals then keep
    N - cells - 1 degrees of freedom. `percent` is the slope over the whole range of `order`.
    None with no degree of freedom left, or where no cell was measured at two places in the order.
    """
    y, x = _logs(values), np.array(order, dtype=float)
    labels = list(dict.fromkeys(cells))
    members = np.array([labels.index(cell) for cell in cells], dtype=int)
    for number in range(len(labels)):
        inside = members == number
        y[inside] -= np.mean(y[inside])
        x[inside] -= np.mean(x[inside])
    freedom, spread = len(y) - len(labels) - 1, float(np.sum(x * x))
    if freedom < 1 or spread == 0:
        return None
    slope = float(np.sum(x * y)) / spread
    error = math.sqrt(float(np.sum((y - slope * x) ** 2)) / freedom / spread)
    change = slope * float(max(order) - min(order))
    percent = 100 * math.expm1(min(change, 700))
    if error <= _ROUNDING / math.sqrt(spread):
        return Drift(percent, 1.0 if abs(change) <= _ROUNDING else 0.0, len(y))
    return Drift(percent, float(2 * scipy.stats.t.sf(abs(slope) / error, freedom)), len(y))
