"""A trace on an adapted index: all operations run, and what adaptation did is told."""

import numpy as np

from headrace.index.adapt.decide import TuningLimits
from headrace.index.adapt.offline import follow_trace
from headrace.index.adapt.propose import Proposal
from headrace.index.configuration import Configuration
from headrace.index.trace import ERASE, FIND, INSERT, SCAN, Trace, encode


def test_a_trace_is_followed() -> None:
    random = np.random.default_rng(0)
    pool = np.unique(random.normal(size=4000))
    operations = random.choice([FIND, INSERT, ERASE, SCAN], 50_000, p=[0.2, 0.7, 0.08, 0.02])
    trace = Trace.of(random.choice(pool, 50_000), operations, pool[::2])
    logs = Configuration(leaf="log")

    def propose(*_: object) -> Proposal:
        return Proposal(configuration=logs, gain=3.0)

    found = follow_trace(
        trace,
        Configuration(leaf="gapped"),
        proposer=propose,
        limits=TuningLimits(worse=100.0),
        repeats=100,
    )
    assert found.operations == 5_000_000
    assert len(found.rates) == 1000
    assert found.statistics["size"] <= len(pool)
    assert found.configuration == logs
    events = [each["event"] for each in found.events]
    assert events[:3] == ["changed", "recorded", "planned"]


def test_a_trace_without_operations_is_loaded_alone() -> None:
    codes, kind = encode([-1, 5])
    empty = np.empty(0, np.uint64)
    trace = Trace(loaded=codes, operations=empty.astype(np.uint8), keys=empty, kind=kind)
    found = follow_trace(trace, proposer=lambda *_: Proposal(configuration=Configuration(), gain=1))
    assert (found.operations, found.statistics["size"]) == (0, 2)
