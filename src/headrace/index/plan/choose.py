"""Choosing a configuration: a model and short trials rank all, whole trials decide among the best.

Pure but for what is handed in: the provider of trials runs on hardware.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headrace.index.configuration import Configuration
from headrace.index.errors import CapError, TraceError
from headrace.index.plan.frontier import inserts_of, reads_of
from headrace.index.plan.grid import grid
from headrace.index.plan.inputs import of_inserts, of_reads
from headrace.index.plan.model import ThroughputModel, shipped_model
from headrace.index.plan.plan import ConfigurationCandidate, IndexPlan, rank, within
from headrace.index.plan.posterior import RatePosterior
from headrace.index.plan.trial import TOGETHER, ConfigurationTrial, TrialProvider
from headrace.index.profile import IndexProfile
from headrace.index.trace import Trace

ROUNDS = 24
"""Most trials of what is chosen. Of a small sample each takes some hundredths of a second, and its
time depends on where its pages are in the caches."""

_SHORT = 1 / 16
"""Share of the sample's operations that a short trial runs: most of its time is then that of
loading the keys, all of which it needs, as what fits into caches is faster."""

_SHORT_LEAST = 4096
"""Operations of the shortest trial: some tenths of a millisecond, which a processor's clock tells
apart. Whole trials of samples with few operations more are as short."""

_SHORT_PASS = 0.3
"""Share of the time after which no short trial begins: the rest is for whole ones."""

_SURE = 2.0
"""Standard deviations by which a candidate is behind that no short trial is spent on."""

_GAIN = 0.001
"""Expected gain over the fastest, as a share of its rate, below which no trial pays."""

_LEAST = 2
"""Trials of what is chosen: of one each, trials do not tell how noisy they are."""

MOST_S = 6.25
"""Time of all trials, by the provider's clock: none begins that is expected to end after it."""

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
    top : how many candidates are tried, if the time allows; default: those that may be the fastest.
    most_bytes_per_key : cap of memory at the end of the workload.
    most_s : time of the trials, in seconds: none begins that is expected to end after it.
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

    Short ones come first, as predictions are for the machine that the model was trained on; they
    are left out where the number of candidates to be tried is given. A run of whole ones by turns
    is of the fastest and those that may be faster by most.

    Attributes
    ----------
    predicted : the candidates, the fastest first by prediction; places are in it.
    cap : of bytes per key.
    most_s : time of all trials, in seconds of `spent_s`.
    results : of each place that was tried, whole trials.
    loading_s : longest time in a trial beside that of its operations.
    posterior : of the rates.
    """

    predicted: Sequence[ConfigurationCandidate]
    profile: IndexProfile
    provider: TrialProvider
    cap: float | None
    most_s: float
    progress: TrialsProgress
    results: dict[int, list[ConfigurationTrial]] = field(default_factory=dict)
    spent_s: float = 0.0
    loading_s: float = 0.0
    posterior: RatePosterior = field(init=False)

    def __post_init__(self) -> None:
        self.posterior = RatePosterior(
            [candidate.configuration for candidate in self.predicted],
            [candidate.predicted_per_s for candidate in self.predicted],
        )

    def candidates(self, top: int | None) -> list[ConfigurationCandidate]:
        """Return all candidates, of which some have been tried."""
        if top is None:
            self._short_pass()
        else:
            self._try_some(top)
        self._compare(self._fit() if top is None else [*self.results])
        self._try_until_one_fits()
        per_s = self.posterior.per_s()
        return [
            _with_trials(candidate, self.results[place], float(per_s[place]))
            if place in self.results
            else candidate
            for place, candidate in enumerate(self.predicted)
        ]

    def _short_pass(self) -> None:
        """Run the first operations with each candidate that may be the fastest within the cap."""
        sample = self.profile.sample
        count = max(round(_SHORT * len(sample)), _SHORT_LEAST)
        if count > len(sample) / 2:
            return
        first = replace(sample, operations=sample.operations[:count], keys=sample.keys[:count])
        untried, tried = self._fit(), list[int]()
        while untried and self.spent_s < _SHORT_PASS * self.most_s:
            next_ones, untried = untried[:TOGETHER], untried[TOGETHER:]
            self._trials(next_ones, first, short=True)
            tried += next_ones
            ahead, deviation = self.posterior.ahead(self._fastest(tried))
            untried = [p for p in untried if ahead[p] + _SURE * deviation[p] >= 0]

    def _try_some(self, top: int) -> None:
        """Try as many candidates, the next being those that are expected to be fastest."""
        untried = self._fit()
        while untried and self._goes_on():
            lacking = top - sum(map(self._fits, self.results))
            if lacking <= 0:
                return
            per_s = self.posterior.per_s()
            untried.sort(key=lambda place: -per_s[place])
            count = min(lacking, TOGETHER)
            next_ones, untried = untried[:count], untried[count:]
            self._run(next_ones)

    def _compare(self, compared: Sequence[int]) -> None:
        """Try the fastest and its rivals, until no other can be expected to be faster."""
        while self._goes_on():
            places = [place for place in compared if self._fits(place)]
            if not places:
                return
            leader = self._fastest(places)
            gains = self.posterior.expected_gain(leader)
            others = sorted(set(places) - {leader}, key=lambda place: -gains[place])
            rivals = [place for place in others if gains[place] >= _GAIN]
            tries = len(self.results.get(leader, ()))
            if tries >= (ROUNDS if rivals else _LEAST):
                return
            # beside another one at least: a slow run by itself would look like a slow machine
            together = self._within_time([leader, *(rivals or others[:1])[: TOGETHER - 1]])
            if len(together) < min(len(places), 2) and self._has_choice():
                return
            self._run(together or [leader])

    def _try_until_one_fits(self) -> None:
        """Try candidates by their predicted memory while none of those tried is within the cap."""
        by_memory = sorted(
            range(len(self.predicted)),
            key=lambda place: (self.predicted[place].predicted_bytes_per_key, place),
        )
        for place in by_memory:
            if self._has_choice():
                return
            if place not in self.results:
                self._run([place])

    def _goes_on(self) -> bool:
        return self.spent_s < self.most_s or not self._has_choice()

    def _has_choice(self) -> bool:
        """Return whether a candidate has been tried that is within the cap."""
        return any(map(self._fits, self.results))

    def _within_time(self, places: Sequence[int]) -> list[int]:
        """Return the first places, of which one run by turns is expected to end in time."""
        operations, per_s = len(self.profile.sample), self.posterior.per_s()
        ends_s = self.spent_s + np.cumsum(
            [self.loading_s + operations / per_s[place] for place in places]
        )
        return [place for place, end_s in zip(places, ends_s, strict=True) if end_s <= self.most_s]

    def _fit(self) -> list[int]:
        """Return the places predicted within the cap."""
        return _within(self.predicted, self.cap)

    def _fits(self, place: int) -> bool:
        """Return whether a candidate is within the cap: by its trials, if it has some."""
        results = self.results.get(place)
        return results is None or self.cap is None or _bytes_per_key(results) <= self.cap

    def _fastest(self, places: Sequence[int]) -> int:
        per_s = self.posterior.per_s()
        return max(places, key=lambda place: per_s[place])

    def _run(self, places: Sequence[int]) -> None:
        trials = self._trials(places, self.profile.sample, short=False)
        for place, trial in zip(places, trials, strict=True):
            self.results.setdefault(place, []).append(trial)

    def _trials(
        self, places: Sequence[int], trace: Trace, *, short: bool
    ) -> Sequence[ConfigurationTrial]:
        configurations = [self.predicted[place].configuration for place in places]
        names = ", ".join(configuration.name for configuration in configurations)
        self.progress(f"running {names}", min(self.spent_s / self.most_s, 1.0))
        trials = self.provider(configurations, trace)
        self.posterior.observe(places, [trial.operations_per_s for trial in trials], short=short)
        self.spent_s += sum(trial.seconds for trial in trials)
        for trial in trials:
            operations_s = len(trace) / max(trial.operations_per_s, 1.0)
            self.loading_s = max(self.loading_s, trial.seconds - operations_s)
        return trials


def _within(
    candidates: Sequence[ConfigurationCandidate], most_bytes_per_key: float | None
) -> list[int]:
    """Return the places of candidates that are predicted within a cap, by their places."""
    cap = float("inf") if most_bytes_per_key is None else most_bytes_per_key * _MARGIN
    return [p for p, candidate in enumerate(candidates) if candidate.predicted_bytes_per_key <= cap]


def _bytes_per_key(results: Sequence[ConfigurationTrial]) -> float:
    return results[-1].bytes / results[-1].keys


def _with_trials(
    candidate: ConfigurationCandidate, results: Sequence[ConfigurationTrial], per_s: float
) -> ConfigurationCandidate:
    return replace(
        candidate,
        trials=len(results),
        trial_per_s=per_s,
        trial_bytes_per_key=_bytes_per_key(results),
        trial_spread=_spread(results),
        leaves=tuple(results[-1].leaves),
    )


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
        (read,), (write,) = (trial([candidate.configuration], part) for part in (reads, inserts))
        measured.append(
            replace(
                candidate,
                read_ns=1e9 / read.operations_per_s,
                write_ns=1e9 / write.operations_per_s,
            )
        )
    return measured
