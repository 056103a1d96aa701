"""Unloaded probes: alpha and beta of links, measured without other traffic (TACCL 5.3)."""

from collections.abc import Iterator, Sequence

import numpy as np

from headrace.collectives.measure.budget import ProbeEffort
from headrace.collectives.measure.fit.alpha_beta import LinkFit, Sample, fit_link
from headrace.collectives.measure.probes.group_prober import MAX_REPEATS
from headrace.collectives.measure.probes.probe import ACK_BYTES, Flow, Manner
from headrace.collectives.measure.probes.recorder import (
    BULK_CHUNKS,
    Recorder,
    Series,
    bulk_chunk_bytes,
)
from headrace.collectives.measure.probes.round_robin import Pair
from headrace.errors import CommunicationError

_ECHOES = (BULK_CHUNKS, 3 * BULK_CHUNKS)
_LEAST_BYTES = 16_384.0
_STEP = 4.0  # from the small bulk transfer to the large one


class UnloadedProbes:
    """Fits of links between ranks; samples are kept, so that a second probe adds to the first."""

    def __init__(self, recorder: Recorder, effort: ProbeEffort) -> None:
        self._recorder = recorder
        self._effort = effort
        self._samples: dict[Pair, list[Sample]] = {}
        self._sizes: dict[Pair, list[int]] = {}

    def fit(self, pairs: Sequence[Pair], bytes_per_s: Sequence[float]) -> list[LinkFit]:
        """Probe and fit the links between pairs of ranks on different hosts (or one per host).

        `bytes_per_s` is an estimate of each one's bandwidth, used the first time.
        """
        try:
            self._echo(pairs)
            for sizes in self._chunk_bytes(pairs, np.asarray(bytes_per_s, dtype=float)):
                self._bulk(pairs, sizes)
            self._echo(pairs)  # apart in time: a disturbance of milliseconds spoils one of the two
        except CommunicationError:
            self._discard_unfinished(pairs)
            raise
        return [fit_link(self._samples[pair]) for pair in pairs]

    def _discard_unfinished(self, pairs: Sequence[Pair]) -> None:
        """Discard first probes that a lost host cut short: they are repeated from the start."""
        for pair in pairs:
            if len(self._sizes.get(pair, ())) < 2:
                self._sizes.pop(pair, None)
                self._samples.pop(pair, None)

    def _chunk_bytes(self, pairs: Sequence[Pair], rates: np.ndarray) -> Iterator[list[int]]:
        """Yield sizes, small then large; the rate of the small transfer sets the large one."""
        if all(pair in self._sizes for pair in pairs):
            yield from ([self._sizes[pair][step] for pair in pairs] for step in (0, 1))
            return
        effort, least = self._effort, _LEAST_BYTES
        for part in (1 / _STEP, 1.0):
            most = effort.most_bytes * part
            total = np.clip(rates * effort.quiet_us / 1e6 * part, min(least, most), most)
            sizes = [bulk_chunk_bytes(size) for size in total.tolist()]
            for pair, size in zip(pairs, sizes, strict=True):
                self._sizes.setdefault(pair, []).append(size)
            yield sizes
            took = [self._typical_us(pair, size) for pair, size in zip(pairs, sizes, strict=True)]
            rates = total / np.array(took) * 1e6
            least = _STEP * float(total.max())

    def _echo(self, pairs: Sequence[Pair]) -> None:
        for echoes in _ECHOES:
            sizes = [ACK_BYTES] * len(pairs)
            self._run(pairs, Manner.ONE_AFTER_ANOTHER, echoes, sizes, self._effort.repeats)

    def _bulk(self, pairs: Sequence[Pair], sizes: Sequence[int]) -> None:
        """Send N chunks at once, and the first time also the same chunks one after another."""
        effort = self._effort
        times = self._run(pairs, Manner.AT_ONCE, BULK_CHUNKS, sizes, 1)
        # short transfers (a fast network) are noisy, and cheap to repeat
        more = int(effort.quiet_us / _STEP / float(times.max()))
        repeats = min(max(more, effort.repeats), MAX_REPEATS) - 1
        if repeats > 0:
            self._run(pairs, Manner.AT_ONCE, BULK_CHUNKS, sizes, repeats)
        if all(len(self._sizes[pair]) == 1 for pair in pairs):
            self._run(pairs, Manner.ONE_AFTER_ANOTHER, BULK_CHUNKS, sizes, 1)

    def _run(
        self,
        pairs: Sequence[Pair],
        manner: Manner,
        chunks: int,
        sizes: Sequence[int],
        repeats: int,
    ) -> np.ndarray:
        flows = [Flow(*pair, size) for pair, size in zip(pairs, sizes, strict=True)]
        times = self._recorder.probe(Series.UNLOADED, manner, chunks, flows, repeats)
        for pair, size, row in zip(pairs, sizes, times.tolist(), strict=True):
            mine = self._samples.setdefault(pair, [])
            mine.extend(Sample(manner, chunks, size, time_us) for time_us in row)
        return times

    def _typical_us(self, pair: Pair, chunk_bytes: int) -> float:
        # not the least: the first transfer after a pause may pass a shaper as one burst
        return float(
            np.median(
                [
                    sample.time_us
                    for sample in self._samples[pair]
                    if sample.manner is Manner.AT_ONCE and sample.chunk_bytes == chunk_bytes
                ]
            )
        )
