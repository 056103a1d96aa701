"""Time of a step, from what it moves and the rates of links and processes.

Fetches, delayed exchanges, write-backs, reading and deciding run beside the device. A step lasts as
long as the resource needs that is busy longest: the trainers' own loop (the device, the part of the
dense gradients' average that it does not hide, the critical exchange), a link, or a process.
"""

import math
from collections.abc import Mapping

from headrace.artifact_value import stored_value
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.plan.traffic import LinkBytes, StepBytes, role_bytes
from headrace.embeddings.profile import EmbeddingProfile, ProcessorSeconds, StepRows
from headrace.units import FASTEST, SLOWEST

_AVERAGED_BESIDE = 1 / 3
"""Share of the device's time in which dense gradients are averaged beside it: the last half of the
backward pass, which takes two thirds."""

_CRITICAL_MESSAGES = 2
"""One after the other: gradients, then rows."""

_RANGES = {
    "compute_s": (1e-6, 1e6),
    "link_bytes_per_s": (SLOWEST, FASTEST),
}
_LATENCY_S = 1e-4
"""Of a message between trainers: a round trip of TCP within a zone of a cloud."""


@stored_value("headrace.embeddings", EmbeddingError)
class StepCosts:
    """Costs of a job's resources; a process has a host, with a link, of its own.

    Attributes
    ----------
    compute_s : of the device in a step, forward and backward, without rows and exchanges.
    link_bytes_per_s : that each host's link carries, in each direction, without headers.
    processors : that all processes share; 0: each has one of its own.

    Raises
    ------
    EmbeddingError : a number is out of range.
    """

    compute_s: float
    link_bytes_per_s: float
    processors: int = 0

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            if not least <= getattr(self, name) <= most:
                raise EmbeddingError(
                    f"{name} is {getattr(self, name):g}, needs {least:g} to {most:g}"
                )
        if not 0 <= self.processors <= 1 << 16:
            raise EmbeddingError(f"processors is {self.processors}, needs 0 to {1 << 16}")


@stored_value("headrace.embeddings", EmbeddingError)
class PredictedStep:
    """Predicted time of a step.

    Attributes
    ----------
    resources_s : seconds that each resource is busy in a step, by its name.
    """

    resources_s: Mapping[str, float]

    @property
    def bound(self) -> str:
        """Name of the resource that the step is bound by."""
        return max(self.resources_s, key=lambda name: self.resources_s[name])

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.resources_s[self.bound]


def predicted_step(
    profile: EmbeddingProfile,
    rows: StepRows,
    moved: StepBytes,
    costs: StepCosts,
    *,
    servers: int,
    readers: int,
) -> PredictedStep:
    """Return the time of a step, and of each of its resources."""
    trainers, rate = profile.trainers, costs.link_bytes_per_s
    links = role_bytes(moved, trainers=trainers, servers=servers, readers=readers)
    processors = processor_seconds(profile, rows, moved)
    resources = {"trainers' loop": _loop_s(profile, rows, moved, costs, links["trainer"])}
    for role, link in links.items():
        resources[f"{role}'s link"] = link.busier / rate
    numbers = {"trainer": trainers, "server": servers, "cacher": 1, "reader": readers}
    for role in ("server", "cacher", "reader"):
        resources[role] = processors[role] / numbers[role]
    if costs.processors:
        resources["processors"] = sum(processors.values()) / costs.processors
    return PredictedStep(resources_s=resources)


def processor_seconds(
    profile: EmbeddingProfile, rows: StepRows, moved: StepBytes
) -> Mapping[str, float]:
    """Return the processor seconds of a step, of all processes of each role together."""
    seconds: ProcessorSeconds = profile.processor_seconds
    exchanged = rows.exchanged + _averaged_rows(rows, moved)
    return {
        "trainer": seconds.train * rows.used + seconds.exchange * exchanged,
        "server": seconds.serve * (rows.fetched + rows.evicted),
        "cacher": seconds.decide * profile.batch,
        "reader": seconds.read * profile.batch,
    }


def _loop_s(
    profile: EmbeddingProfile, rows: StepRows, moved: StepBytes, costs: StepCosts, link: LinkBytes
) -> float:
    """Return the seconds of what a trainer does one after the other, whose link is given.

    All trainers work on rows at the same time: with fewer processors than trainers, each waits. It
    waits in the average, too, whose bytes take processors as long as those of exchanged rows do.
    """
    trainers, rate = profile.trainers, costs.link_bytes_per_s
    seconds = profile.processor_seconds
    crowding = max(1.0, trainers / costs.processors) if costs.processors else 1.0
    loop_s = costs.compute_s + crowding * seconds.train * rows.used / trainers
    if trainers > 1:
        beside = link.busier - (moved.averaged + moved.critical) / trainers
        others_s = (crowding - 1) * seconds.exchange * _averaged_rows(rows, moved) / trainers
        average_s = moved.averaged / trainers / rate + others_s
        loop_s += _exposed_average_s(average_s, beside / rate, costs.compute_s)
        loop_s += moved.critical / trainers / rate + _CRITICAL_MESSAGES * _LATENCY_S
        loop_s += crowding * seconds.exchange * rows.critical / trainers
    return loop_s


def _averaged_rows(rows: StepRows, moved: StepBytes) -> float:
    """Return the exchanged rows that have as many bytes as the average of dense gradients moves."""
    exchanged = moved.critical + moved.delayed
    return rows.exchanged * moved.averaged / exchanged if exchanged else 0.0


def _exposed_average_s(average_s: float, beside_s: float, compute_s: float) -> float:
    """Return the seconds between the device's end and that of the dense gradients' average.

    Other bytes, `beside_s` of the link's time, are taken to be spread over computing and averaging.
    They slow the average, which shares the link with them: when it begins after `before_s`, it
    takes x = average_s + beside_s * x / (before_s + x), a quadratic equation.
    """
    before_s = (1 - _AVERAGED_BESIDE) * compute_s
    excess_s = average_s + beside_s - before_s
    shared_s = (excess_s + math.sqrt(excess_s**2 + 4 * average_s * before_s)) / 2
    return max(0.0, shared_s - _AVERAGED_BESIDE * compute_s)
