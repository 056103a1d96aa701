"""Choosing a configuration: a model and short trials rank all, whole trials decide among the best.

Pure but for what is handed in: the provider of trials runs on hardware.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

import numpy as np

from headrace.index.configuration import Configuration
from headrace.index.errors import CapError, TraceError
from headrace.index.plan.frontier import inserts_of, reads_of
from headrace.index.plan.grid import grid
from headrace.index.plan.inputs import configuration_input, of_inserts, of_reads
from headrace.index.plan.model import ThroughputModel, shipped_model
from headrace.index.plan.plan import ConfigurationCandidate, IndexPlan, rank, within
from headrace.index.plan.trial import ConfigurationTrial, TrialProvider
from headrace.index.profile import IndexProfile
from headrace.index.trace import Trace

ROUNDS = 24
"""Most trials of one candidate. Of a small sample each takes some hundredths of a second, and its
time depends on where its pages are in the caches."""

_MARGIN_OF_ONE = 0.15
"""Share by which a candidate may be behind the best after one trial each, to be tried again; after
n trials it is smaller by the square root of n, as the error of their mean is."""

_BEHIND = 1e-6
"""Share by which an unconfirmed candidate counts as slower than the slowest that it may equal."""

_EARLY = 3
"""Candidates that are tried before the best of each type that is not among them."""

_NEAR = 0.5
"""Share of the fastest trial that a candidate must be expected to reach to be tried: predictions
for keys of unseen families err by a factor of 1.2 on average (`both_error_log2` of the model's
provenance), before trials correct them."""

_NEAR_SHORT = 0.75
"""The same after short trials: the fastest of whole trials was up to 0.18 behind the fastest of
short ones in cells of the benchmark, on a busy machine."""

_SHORT = 1 / 16
"""Share of the sample's operations that a short trial runs: most of its time is then that of
loading the keys, all of which it needs, as what fits into caches is faster."""

_SHORT_LEAST = 4096
"""Operations of the shortest trial: some tenths of a millisecond, which a processor's clock tells
apart. Whole trials of samples with few operations more are as short."""

_SHORT_PASS = 0.4
"""Share of the time after which no short trial begins: the rest is for several whole trials of each
candidate that is near the fastest."""

_RIDGE = 0.25
"""Of corrections: the variance of a trial, by 5%, over that of a slope, by 10% for each bucket."""

_CONFIRMED_FROM = 0.9
"""Share of the time after which trials only confirm the fastest, see `_Trials._confirm`."""

_FIRST_PASS = 0.6
"""Share of the time after short trials after which no further candidate is tried: one that is left
out may lose more than near ones that are mistaken for each other."""

MOST_S = 7.0
"""Time of all trials after which no more begin, by the provider's clock."""

_MARGIN = 1.15
"""Over the cap, predicted, up to which a candidate is tried: the prediction's error."""

TrialsProgress = Callable[[str, float], None]
"""Called with what is being done and the share that is."""


def plan(
    profile: IndexProfile,
    *,
    trial: TrialProvider | None = None,
    top: int | None = None,
    most_bytes_per_key: float | None = None,
    most_s: float = MOST_S,
    frontier: bool = False,
    model: ThroughputModel | None = None,
    configurations: Sequence[Configuration] | None = None,
    provenance: Mapping[str, Any] | None = None,
    progress: TrialsProgress | None = None,
) -> IndexPlan:
    """Return the best configuration found for a profile's workload (section 6.3).

    Parameters
    ----------
    trial : runs the sample; None: the model alone decides.
    top : how many candidates are tried, if the time allows; default: those that are expected to
        reach half of the fastest.
    most_bytes_per_key : cap of memory at the end of the workload.
    most_s : time of the trials after which no more begin, in seconds.
    frontier : whether each configuration's finds and inserts are run by themselves, for the
        frontier; else these times are predicted. Takes longer than `most_s`.
    model : default: the one of the package.
    configurations : default: `grid()`.

    Raises
    ------
    CapError : no configuration is within the cap, or it is no finite number.
    TraceError : the frontier is to be measured, and no key is ever in the sample's index.
    """
    if frontier and trial is not None and not len(inserts_of(profile.sample)):
        raise TraceError(
            "the frontier is of finds and inserts of a sample's keys, and this profile's has none: "
            "leave it out (--frontier), or measure a trace that loads or inserts keys"
        )
    if most_bytes_per_key is not None and not math.isfinite(most_bytes_per_key):
        raise CapError(f"the cap is {most_bytes_per_key} bytes per key, needs a finite number")
    model = model or shipped_model()
    tell = progress or (lambda _what, _share: None)
    candidates = _predicted(profile, model, configurations or grid())
    if trial is not None:
        trials = _Trials(candidates, profile, trial, most_bytes_per_key, most_s, tell)
        candidates = trials.candidates(top)
        if frontier:
            candidates = _measured_frontier(candidates, profile, trial, tell)
    candidates.sort(key=lambda candidate: rank(candidate, most_bytes_per_key))
    if not within(candidates[0], most_bytes_per_key):
        least = min(candidate.bytes_per_key for candidate in candidates)
        raise CapError(
            f"the cap is {most_bytes_per_key:g} bytes per key, no configuration is within it: the "
            f"least is {math.ceil(100 * least) / 100:g}"
        )
    return IndexPlan(
        candidates=tuple(candidates),
        encoding=profile.encoding,
        profile_digest=profile.digest,
        most_bytes_per_key=most_bytes_per_key,
        settings={
            "model": model.digest,
            "top": 0 if trial is None else len(candidates) if top is None else top,
            "frontier": "measured" if frontier and trial is not None else "predicted",
        },
        provenance={"model": dict(model.provenance), **(provenance or {})},
    )


def _predicted(
    profile: IndexProfile, model: ThroughputModel, configurations: Sequence[Configuration]
) -> list[ConfigurationCandidate]:
    """Return the configurations with what the model predicts, the fastest first."""
    mixed = model.predict(profile.encoding, configurations)
    reads = model.predict(of_reads(profile.encoding), configurations)
    writes = model.predict(of_inserts(profile.encoding), configurations)
    candidates = [
        ConfigurationCandidate(
            configuration=configuration,
            predicted_per_s=float(mixed.operations_per_s[place]),
            predicted_bytes_per_key=float(mixed.bytes_per_key[place]),
            read_ns=1e9 / float(reads.operations_per_s[place]),
            write_ns=1e9 / float(writes.operations_per_s[place]),
        )
        for place, configuration in enumerate(configurations)
    ]
    return sorted(candidates, key=lambda candidate: -candidate.predicted_per_s)


@dataclass(slots=True)
class _Trials:
    """Trials of candidates on a profile's sample.

    Short ones rank all, as a prediction is for the machine that the model was trained on; they are
    left out where the number of candidates to be tried is given. After a first pass of whole ones
    candidates take turns, so that a slow moment of the machine affects all alike, and those that
    have fallen behind are left out; but the best of each type is tried twice, as a slow moment can
    be all of its own. At last the fastest is confirmed: few trials are no evidence against many.

    Attributes
    ----------
    predicted : the candidates, the fastest first by prediction; places are in it.
    cap : of bytes per key.
    most_s : time after which no more trials begin, in seconds of `spent_s`.
    results : of each place that was tried.
    limits : rates that places count with at most, as their few trials are within the noise.
    expected_per_s : rates by short trials, else by prediction.
    near : share of the fastest trial that a candidate must be expected to reach to be tried.
    inputs : parameters of each candidate, in buckets.
    """

    predicted: Sequence[ConfigurationCandidate]
    profile: IndexProfile
    provider: TrialProvider
    cap: float | None
    most_s: float
    progress: TrialsProgress
    results: dict[int, list[ConfigurationTrial]] = field(default_factory=dict)
    spent_s: float = 0.0
    limits: dict[int, float] = field(default_factory=dict)
    expected_per_s: list[float] = field(init=False)
    near: float = _NEAR
    inputs: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.expected_per_s = [candidate.predicted_per_s for candidate in self.predicted]
        self.inputs = configuration_input([candidate.configuration for candidate in self.predicted])

    def candidates(self, top: int | None) -> list[ConfigurationCandidate]:
        """Return all candidates, of which the near ones have been tried."""
        if top is None:
            self._short_pass()
        self._first_pass(top)
        for done in range(1, ROUNDS):
            again = self._near(done)
            if len(again) < 2:
                break
            for place in again:
                if self.spent_s < _CONFIRMED_FROM * self.most_s:
                    self._run(place)
        self._confirm()
        return [
            self._estimated(place) if place in self.results else candidate
            for place, candidate in enumerate(self.predicted)
        ]

    def _confirm(self) -> None:
        """Try the fastest until it has as many trials as those that it is faster than by chance.

        A candidate of one trial that is ahead of one of many by less than the error of its mean is
        run again. If the time is over, it counts as just slower than the other: it is not chosen.
        """
        while True:
            leader = self._leader()
            fastest = self._estimated(leader)
            least = fastest.per_s * (1 - _noise(fastest.trials))
            rivals = [
                place
                for place in self.results
                if len(self.results[place]) > fastest.trials
                and self._fits(place)
                and self._estimated(place).per_s >= least
            ]
            if not rivals:
                return
            if self.spent_s < self.most_s:
                self._run(leader)
            else:
                self.limits[leader] = (1 - _BEHIND) * min(
                    self._estimated(place).per_s for place in rivals
                )

    def _short_pass(self) -> None:
        """Run the first operations with each candidate that is predicted within the cap."""
        sample = self.profile.sample
        count = max(round(_SHORT * len(sample)), _SHORT_LEAST)
        if count > len(sample) / 2:
            return
        first = replace(sample, operations=sample.operations[:count], keys=sample.keys[:count])
        rates: dict[int, float] = {}
        for place in _within(self.predicted, self.cap):
            if self.spent_s >= _SHORT_PASS * self.most_s:
                break
            rates[place] = self._trial(place, first).operations_per_s
        if not rates:
            return
        ratios = [rate / self.expected_per_s[place] for place, rate in rates.items()]
        others = _correction(np.zeros((len(ratios), 0)), ratios)
        self.expected_per_s = [
            rates.get(place, others * predicted)
            for place, predicted in enumerate(self.expected_per_s)
        ]
        self.near = _NEAR_SHORT

    def _first_pass(self, top: int | None) -> None:
        until_s = self.spent_s + _FIRST_PASS * (self.most_s - self.spent_s)
        for place in self._in_order(stops=top is None):
            self._run(place)
            fit = sum(map(self._fits, self.results))
            if fit and (fit == top or self.spent_s >= until_s):
                break

    def _in_order(self, *, stops: bool) -> Iterator[int]:
        """Yield the places to try first; each depends on the trials before.

        Parameters
        ----------
        stops : whether those that are expected to be far behind are left out.
        """
        first, others, above = _order(self.predicted, self.expected_per_s, self.cap)
        yield from first
        while others:
            place = max(others, key=self._expected_per_s)
            fastest = max(self._measured(tried).per_s for tried in self.results)
            if stops and self._expected_per_s(place) < self.near * fastest:
                break
            others.remove(place)
            yield place
        for place in above:
            if not any(map(self._fits, self.results)):
                yield place

    def _near(self, done: int) -> list[int]:
        """Return the places to try once more after `done` trials, the fastest first."""
        least = self._estimated(self._leader()).per_s * (1 - _noise(done))
        near = [
            place
            for place, trials in self.results.items()
            if len(trials) == done
            and (self._estimated(place).per_s >= least or (done == 1 and self._best_of_type(place)))
            and self._fits(place)
        ]
        return sorted(near, key=lambda place: -self._estimated(place).per_s)

    def _leader(self) -> int:
        return min(self.results, key=lambda place: rank(self._estimated(place), self.cap))

    def _run(self, place: int) -> None:
        self.results.setdefault(place, []).append(self._trial(place, self.profile.sample))

    def _trial(self, place: int, trace: Trace) -> ConfigurationTrial:
        configuration = self.predicted[place].configuration
        self.progress(f"running {configuration.name}", min(self.spent_s / self.most_s, 1.0))
        outcome = self.provider(configuration, trace)
        self.spent_s += outcome.seconds
        return outcome

    def _measured(self, place: int) -> ConfigurationCandidate:
        return _with_trials(self.predicted[place], self.results[place])

    def _expected_per_s(self, place: int) -> float:
        """Return the rate expected before, corrected as trials of its type (else of all) differ."""
        alike = self._tried_of_type(place)
        tried = alike or list(self.results)
        ratios = [self._measured(p).per_s / self.expected_per_s[p] for p in tried]
        apart = self.inputs[tried] - self.inputs[place] if alike else np.zeros((len(tried), 0))
        return self.expected_per_s[place] * _correction(apart, ratios)

    def _estimated(self, place: int) -> ConfigurationCandidate:
        """Return a candidate whose expected rate counts as one more trial, against their noise."""
        tried = self._measured(place)
        share = 1 / (tried.trials + 1)
        rate = tried.per_s ** (1 - share) * self._expected_per_s(place) ** share
        return replace(tried, trial_per_s=min(rate, self.limits.get(place, rate)))

    def _best_of_type(self, place: int) -> bool:
        alike = self._tried_of_type(place)
        return place == max(alike, key=lambda tried: self._measured(tried).per_s)

    def _tried_of_type(self, place: int) -> list[int]:
        return [p for p in self.results if _leaf(self.predicted, p) == _leaf(self.predicted, place)]

    def _fits(self, place: int) -> bool:
        return within(self._measured(place), self.cap)


def _noise(trials: int) -> float:
    """Return the share by which a mean of so many trials may be off."""
    return _MARGIN_OF_ONE / math.sqrt(trials)


def _correction(apart: np.ndarray, ratios: Sequence[float]) -> float:
    """Return the ratio of measured to predicted rates where `apart` (trials, parameters) is 0.

    It is by ridge regression of the logarithms, so that a trend along a parameter goes on.
    """
    inputs = np.column_stack([np.ones(len(apart)), apart])
    penalty = np.diag([0.0] + [_RIDGE] * apart.shape[1])
    return math.exp(np.linalg.solve(inputs.T @ inputs + penalty, inputs.T @ np.log(ratios))[0])


def _leaf(candidates: Sequence[ConfigurationCandidate], place: int) -> str:
    return candidates[place].configuration.leaf


def _order(
    candidates: Sequence[ConfigurationCandidate],
    expected_per_s: Sequence[float],
    most_bytes_per_key: float | None,
) -> tuple[list[int], list[int], list[int]]:
    """Return the places of candidates to try first, those to try then, and those to try last.

    The first are a few by their expected rates, and the best of each further type, so that an error
    about a whole type is found. The last are those predicted above the cap, by their memory: they
    are tried while none that was tried is within it.
    """
    fit = sorted(_within(candidates, most_bytes_per_key), key=lambda p: -expected_per_s[p])
    above = sorted(
        set(range(len(candidates))) - set(fit),
        key=lambda place: (candidates[place].predicted_bytes_per_key, place),
    )
    early = fit[:_EARLY]
    types = {_leaf(candidates, place) for place in early}
    for place in fit[len(early) :]:
        leaf = _leaf(candidates, place)
        if leaf not in types and expected_per_s[place] * 2 > expected_per_s[fit[0]]:
            types.add(leaf)
            early.append(place)
    return early, [place for place in fit if place not in early], above


def _within(
    candidates: Sequence[ConfigurationCandidate], most_bytes_per_key: float | None
) -> list[int]:
    """Return the places of candidates that are predicted within a cap, by their places."""
    cap = float("inf") if most_bytes_per_key is None else most_bytes_per_key * _MARGIN
    return [p for p, candidate in enumerate(candidates) if candidate.predicted_bytes_per_key <= cap]


def _with_trials(
    candidate: ConfigurationCandidate, results: Sequence[ConfigurationTrial]
) -> ConfigurationCandidate:
    return replace(
        candidate,
        trials=len(results),
        trial_per_s=_rate(results),
        trial_bytes_per_key=results[-1].bytes / results[-1].keys,
        trial_spread=_spread(results),
        leaves=tuple(results[-1].leaves),
    )


def _rate(results: Sequence[ConfigurationTrial]) -> float:
    """Return the mean of the faster half: other work slows some trials, and makes none faster."""
    rates = sorted((trial.operations_per_s for trial in results), reverse=True)
    return mean(rates[: (len(rates) + 1) // 2])


def _spread(results: Sequence[ConfigurationTrial]) -> float | None:
    """Return the distance of the quartiles of the rates over their median; None: one trial."""
    if len(results) < 2:
        return None
    low, middle, high = np.percentile([trial.operations_per_s for trial in results], (25, 50, 75))
    return float((high - low) / middle) if middle else None


def _measured_frontier(
    candidates: Sequence[ConfigurationCandidate],
    profile: IndexProfile,
    trial: TrialProvider,
    tell: TrialsProgress,
) -> list[ConfigurationCandidate]:
    """Return the candidates with measured times of finds and inserts."""
    reads, inserts = reads_of(profile.sample), inserts_of(profile.sample)
    measured: list[ConfigurationCandidate] = []
    for place, candidate in enumerate(candidates):
        tell(f"frontier: {candidate.configuration.name}", place / len(candidates))
        read, write = (trial(candidate.configuration, part) for part in (reads, inserts))
        measured.append(
            replace(
                candidate,
                read_ns=1e9 / read.operations_per_s,
                write_ns=1e9 / write.operations_per_s,
            )
        )
    return measured
