"""Likelihood of a partition into racks, given concurrent flows, at its likeliest rates.

The logarithms of measured over predicted times (`fluid`) have Student's distribution, whose long
tails tolerate flows with other causes of delay. Parameters are charged by BIC: racks, and hosts
and limits that differ from the typical.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.collectives.measure.racks.fluid import Rates, Rounds, crossing, predict, seen
from headrace.collectives.measure.racks.partition import Grouping, labels_of

UNLIKE = 0.2
"""Logarithm of the factor from which a rate counts as a parameter of its own."""

_FREEDOM = 3.0  # of Student's distribution
_SCALES = 0.1 * 1.3 ** np.arange(8)
"""Its scale, whichever is likeliest. A tenth at least: the error of the model itself, which must
not be fitted by racks."""
_STEPS = np.array([0.35, 0.5, 0.7, 0.85, 1.0, 1.18, 1.4, 2.0, np.inf])
_FINE_STEPS = np.array([0.92, 1.0, 1.09])
_BATCH = 40_000  # candidates times rounds times hosts at once
_OWN = 0.98  # share of a host's time from which its own flow, not the one received, set it
_FREE = 1.05  # factor over the time by host rates alone within which nothing else limited
_ALIKE = 1.15
_OUTLIERS = 2  # rounds whose rate over an uplink is discarded as a timing error
_ANCHOR = 3.0  # weight, in flows, of the common rate in each host's rate


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RackFit:
    """A partition into racks, with its score on the rounds.

    Attributes
    ----------
    groups : sorted groups of hosts, ordered by their first.
    score : log-likelihood less the charge of its parameters (BIC).
    rates : of this one candidate.
    """

    groups: Grouping
    score: float
    rates: Rates


def best_of(fits: Sequence[RackFit]) -> RackFit:
    """Return the one with the highest score."""
    return max(fits, key=lambda rack_fit: rack_fit.score)


def fit_racks(rounds: Rounds, groups: Grouping) -> RackFit:
    """Return the fit of `groups` to `rounds`, at the likeliest rates."""
    [rack_fit] = fit_groupings(rounds, [groups], equal_hosts(rounds))
    return fit_uplinks(rounds, rack_fit)


def most_promising(
    rounds: Rounds, some: list[Grouping], host: np.ndarray, count: int
) -> list[Grouping]:
    """Return the `count` best at these rates of hosts and apparent other rates."""
    labels = np.array([labels_of(groups) for groups in some])
    scores = _scores(rounds, labels, _apparent(rounds, labels, host))
    return [some[index] for index in np.argsort(-scores)[:count].tolist()]


def fit_groupings(rounds: Rounds, some: list[Grouping], host: np.ndarray) -> list[RackFit]:
    """Return fits of `some` groupings, by a coarse and a fine line search over each rate.

    Uplinks are the apparent ones, all of them times one factor; `host` are initial rates.
    """
    labels = np.array([labels_of(groups) for groups in some])
    rates = _apparent(rounds, labels, host)
    for steps in (_STEPS, _FINE_STEPS):
        # equal hosts first: with the wrong uplinks, racks would be fitted as slow hosts
        rates = _refitted(rounds, labels, rates, alike=steps is _STEPS)
        for name in ("core", "far", "uplink"):
            rates = _times_best(rounds, labels, rates, name, steps)
    rates = _refitted(rounds, labels, rates)
    return [
        RackFit(groups=groups, score=float(score), rates=rates.some(slice(i, i + 1)))
        for i, (groups, score) in enumerate(zip(some, _scores(rounds, labels, rates), strict=True))
    ]


def _times_best(
    rounds: Rounds, labels: np.ndarray, rates: Rates, name: str, steps: np.ndarray
) -> Rates:
    """Return rates with those called `name` times the best of `steps`, for each candidate."""
    values: np.ndarray = getattr(rates, name)
    factors = np.tile(steps, len(labels)).reshape(-1, *[1] * (values.ndim - 1))
    tried = rates.repeated(len(steps))
    tried = replace(tried, **{name: getattr(tried, name) * factors})
    scores = _scores(rounds, np.repeat(labels, len(steps), axis=0), tried)
    best = np.argmax(scores.reshape(len(labels), -1), axis=1)
    return tried.some(np.arange(len(labels)) * len(steps) + best)


def fit_uplinks(rounds: Rounds, rack_fit: RackFit) -> RackFit:
    """Return the fit with every uplink fitted by itself."""
    if len(rack_fit.groups) == 1:
        return rack_fit
    labels = labels_of(rack_fit.groups)
    for steps in (_STEPS, _FINE_STEPS):
        for members in map(list, rack_fit.groups):
            if len(members) == 1:
                continue
            tried = rack_fit.rates.repeated(len(steps))
            # an uplink that never limited is tried from the sum of its hosts' rates
            full = tried.uplink[0, members]
            full = np.where(np.isfinite(full), full, tried.host[0, members].sum())
            tried.uplink[:, members] = full * steps[:, None]
            scores = _scores(rounds, np.tile(labels, (len(steps), 1)), tried)
            index = int(np.argmax(scores))
            if scores[index] > rack_fit.score:
                rates = tried.some(slice(index, index + 1))
                rack_fit = replace(rack_fit, rates=rates, score=float(scores[index]))
        rates = _times_best(rounds, labels[None], rack_fit.rates, "far", _STEPS)
        rates = _times_best(rounds, labels[None], rates, "core", _STEPS)
        rates = _refitted(rounds, labels[None], rates)
        [score] = _scores(rounds, labels[None], rates)
        if score > rack_fit.score:
            rack_fit = replace(rack_fit, rates=rates, score=float(score))
    return rack_fit


def _scores(rounds: Rounds, labels: np.ndarray, rates: Rates) -> np.ndarray:
    """Return (candidates,) log-likelihoods less the charge of parameters."""
    sent = rounds.sent
    took = np.log(rounds.took_us[sent])
    size = max(1, _BATCH // rounds.size.size)
    scores: list[np.ndarray] = []
    for at in range(0, len(labels), size):
        mine, its = labels[at : at + size], rates.some(slice(at, at + size))
        expected = seen(rounds, predict(rounds, mine, its))[:, sent]
        parameters = _parameters(mine, its)
        scores.append(_likelihood(took - np.log(expected)) - parameters * math.log(len(took)) / 2)
    return np.concatenate(scores)


def _parameters(labels: np.ndarray, rates: Rates) -> np.ndarray:
    """Return (candidates,) the number of racks, and of hosts and limits that differ from others.

    A small difference counts as a fraction of one.
    """
    racks = np.array([len(np.unique(row)) for row in labels])
    typical = np.median(rates.host, axis=1)
    hosts = np.abs(np.log(rates.host / typical[:, None]))
    limits = (rates.far / typical, rates.core / rates.host.sum(axis=1))
    others = sum(np.minimum(np.maximum(-np.log(limit) / UNLIKE, 0.0), 1.0) for limit in limits)
    return racks + np.minimum(hosts / UNLIKE, 1.0).sum(axis=1) + others


def _likelihood(residual: np.ndarray) -> np.ndarray:
    """Return (candidates,) log-likelihoods of residuals (candidates, flows), at the best scale."""
    tails = np.log1p((residual[:, None, :] / _SCALES[:, None]) ** 2 / _FREEDOM)
    by_scale = -(_FREEDOM + 1) / 2 * tails.sum(axis=2) - residual.shape[1] * np.log(_SCALES)
    return by_scale.max(axis=1)


def equal_hosts(rounds: Rounds) -> np.ndarray:
    """Return rates (bytes per us) of equal hosts: those of a typical host's fastest flows."""
    rate = np.where(rounds.sent, rounds.size / rounds.took_us, np.nan)
    received = np.take_along_axis(rate, rounds.src, axis=1)
    flows = np.concatenate([rate, received])
    # where the budget ended in the first round, one of an odd number of hosts has no flow
    fast = np.nanquantile(flows[:, np.isfinite(flows).any(axis=0)], 0.9, axis=0)
    return np.full(rounds.hosts, np.median(fast))


def _refitted(rounds: Rounds, labels: np.ndarray, rates: Rates, *, alike: bool = False) -> Rates:
    """Return rates with hosts refitted to the flows that only hosts limited.

    If hosts are `alike`, by one factor for all of them.
    """
    ends = predict(rounds, labels, rates)
    mine = np.broadcast_to(rates.host[:, None, :], ends.shape)
    receiver_rate = rounds.at(rounds.dst, mine)
    free = rounds.sent & (ends >= _OWN * seen(rounds, ends))
    free &= ends <= _FREE * rounds.size / np.minimum(mine, receiver_rate)
    residual = np.full(ends.shape, np.nan)
    residual[free] = np.log(np.broadcast_to(rounds.took_us, ends.shape)[free] / ends[free])
    common = _median(residual.reshape(len(residual), -1).T)
    if alike:
        return replace(rates, host=rates.host * np.exp(-common)[:, None])
    # the slower of the two hosts sets the rate, or either of them
    sends = np.where(mine <= receiver_rate * _ALIKE, residual, np.nan)
    receives = rounds.at(rounds.src, np.where(receiver_rate <= mine * _ALIKE, residual, np.nan))
    about = np.concatenate([sends, receives], axis=1) - common[:, None, None]
    count = np.isfinite(about).sum(axis=1)
    own = _median(about.transpose(1, 0, 2)) * count / (count + _ANCHOR)
    return replace(rates, host=rates.host * np.exp(-common[:, None] - own))


def _median(values: np.ndarray) -> np.ndarray:
    """Return the median over the first axis of values that are not nan; 0.0 of none."""
    count = np.isfinite(values).sum(axis=0)
    middle = np.stack([np.maximum(count - 1, 0) // 2, count // 2])
    both = np.take_along_axis(np.sort(values, axis=0), middle, axis=0)
    return np.where(count > 0, both.mean(axis=0), 0.0)


def _apparent(rounds: Rounds, labels: np.ndarray, host: np.ndarray) -> Rates:
    """Return apparent rates: the largest sums over an uplink, and single flows between racks.

    Rounds with less had less to send, or were limited at the other end. The uplink of a rack of
    one counts as infinite: it cannot be told from the host.
    """
    same = (labels[:, :, None] == labels[:, None, :]).astype(float)
    rate = np.where(rounds.sent, rounds.size / np.where(rounds.sent, rounds.took_us, 1.0), 0.0)
    out = np.where(crossing(rounds, labels), rate, 0.0)
    had = np.concatenate([out @ same, rounds.at(rounds.src, out) @ same], axis=1)
    most = np.sort(had, axis=1)[:, -min(_OUTLIERS + 1, had.shape[1])]
    sorted_rates = np.sort(out.reshape(len(out), -1), axis=1)
    core = np.sort(rate.sum(axis=1))[-min(_OUTLIERS + 1, len(rate))]
    far = sorted_rates[:, -min(rounds.hosts, sorted_rates.shape[1])]
    return Rates(
        host=np.tile(host, (len(labels), 1)),
        uplink=np.where((most > 0) & (same.sum(axis=1) > 1), most, np.inf),
        far=np.where(far > 0, far, np.inf),
        core=np.full(len(labels), core),
    )
