"""A small model without training, profiles, and a provider of trials that follows a formula."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.index.configuration import Configuration
from headrace.index.measure.survey import survey_trace
from headrace.index.measure.workload import Workload, workload_trace
from headrace.index.plan.inputs import BUCKETS, vector_input
from headrace.index.plan.model import CLASSES, ThroughputModel
from headrace.index.plan.trial import ConfigurationTrial
from headrace.index.profile import IndexProfile
from headrace.index.trace import Trace

KEYS = np.unique(np.random.default_rng(4).integers(0, 2**50, 3000)).astype(np.uint64)


def profile(**shares: float) -> IndexProfile:
    trace = workload_trace(KEYS, Workload(**shares))  # pyright: ignore[reportArgumentType]
    return survey_trace(trace, provenance={"source": "a test"})


def random_model(seed: int = 0, networks: int = 2) -> ThroughputModel:
    random = np.random.default_rng(seed)
    vector = len(vector_input(profile().encoding))
    shapes = {
        "first.weight": (4, 2, 3, 3),
        "second.weight": (6, 4, 3, 3),
        "third.weight": (8, 6, 3, 3),
        "image.weight": (5, 16),
        "vector.weight": (7, vector),
        "keys.weight": (6, 7),
        "embedding.weight": (sum(BUCKETS.values()), 9),
        "joined.weight": (12, 20),
        "inner.weight": (12, 12),
        "classes.weight": (CLASSES, 12),
        "bytes.weight": (1, 12),
    }
    arrays = {"mean": np.zeros(vector), "scale": np.ones(vector)}
    arrays |= {"low": np.full(vector, -5.0), "high": np.full(vector, 5.0)}
    for network in range(networks):
        for name, shape in shapes.items():
            arrays[f"{network}.{name}"] = random.normal(0, 0.3, shape)
            if name != "embedding.weight":
                arrays[f"{network}.{name.replace('weight', 'bias')}"] = np.zeros(shape[0])
    return ThroughputModel(arrays, {"data": "none"})


@dataclass
class FakeTrials:
    """Trials by a rate for each configuration; counts what was asked."""

    rate: Callable[[Configuration], float]
    bytes_per_key: Callable[[Configuration], float] = lambda _: 20.0
    seconds: float = 0.1
    asked: list[Configuration] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)

    def __call__(
        self, configurations: Sequence[Configuration], trace: Trace
    ) -> list[ConfigurationTrial]:
        assert configurations
        self.asked.extend(configurations)
        self.traces.append(trace)
        keys = max(trace.final_size(), 1)
        return [
            ConfigurationTrial(
                operations_per_s=self.rate(configuration),
                bytes=round(self.bytes_per_key(configuration) * keys),
                keys=keys,
                seconds=self.seconds,
                leaves=(0, 0, 7, 0),
            )
            for configuration in configurations
        ]
