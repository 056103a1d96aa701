"""The memory plan: a schedule for a budget, what it was made for, and its certificate."""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np

from headrace import fields
from headrace.artifact import Artifact, Table, columns_of
from headrace.artifact_value import ArtifactValue, stored_value
from headrace.errors import ArtifactError
from headrace.fields import Field
from headrace.memory.errors import ScheduleError
from headrace.memory.plan.energy import in_microjoules, read_watts
from headrace.memory.plan.verify import VerifiedFigures, verify
from headrace.memory.profile import MemoryProfile
from headrace.memory.schedule import Schedule, Step, plain_schedule
from headrace.units import duration, size

_MOST_BYTES = 1 << 50
_MOST_STEPS = 1 << 31
_STEPS = {"operator": np.int32, "implementation": np.int32}
_CLOSE = 1e-9
"""Relative difference of times that count as equal: sums in another order."""
_SOLVED = 1e-6
"""The same of a bound and what it bounds: tolerances of solvers."""


@stored_value("headrace.memory", ArtifactError, repr=False)
class MemoryPlan(ArtifactValue, kind="memory-plan", schema=1, command="headrace memory plan"):
    """A schedule of a profile's graph within a budget.

    Attributes
    ----------
    profile : what it was made for.
    budget_bytes : most that a step may allocate, with what is resident.
    schedule : order of the operators, which alone says what is stored and what recomputed.
    peak_bytes, time_us : predicted, by replay.
    bound_us : proven lower bound of the time of every schedule within the budget that runs each
        forward operator at most once before a backward operator; 0 if none is known.
    settings : what it was made with, such as the seed and limits.
    provenance : sources; not part of the digest.
    """

    profile: MemoryProfile
    budget_bytes: int
    schedule: Schedule
    peak_bytes: int
    time_us: float
    bound_us: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """The model and device, peak and budget, time, and how many operators are run."""
        return (
            f"{self.profile.model} on {self.profile.device}, {size(self.peak_bytes)} of "
            f"{size(self.budget_bytes)}, step {duration(self.time_us)}, "
            f"{len(self.schedule.steps)} runs of {len(self.profile.graph.operators)} operators"
        )

    @property
    def gap(self) -> float:
        """(cost - bound) / cost."""
        cost = self.cost
        return max(0.0, cost - self.bound) / cost if cost else 0.0

    @property
    def energy_uj(self) -> float | None:
        """Predicted energy in microjoules; None unless it is what the plan minimises."""
        return self._energy_uj(self.schedule)

    @property
    def cost(self) -> float:
        """Figure that the plan minimises: its energy if that is known, else its time."""
        energy = self.energy_uj
        return self.time_us if energy is None else energy

    @property
    def bound(self) -> float:
        """Proven lower bound of the cost; 0 if none is known."""
        if "watts" in self.settings:
            return float(self.settings.get("energy_bound_uj", 0.0))
        return self.bound_us

    @property
    def plain_uj(self) -> float | None:
        """Predicted energy of a run without recomputation, as `energy_uj`."""
        return self._energy_uj(plain_schedule(self.profile.graph))

    def _energy_uj(self, schedule: Schedule) -> float | None:
        if "watts" not in self.settings:
            return None
        return verify(in_microjoules(self.profile.graph, self.settings["watts"]), schedule).time_us

    @property
    def plain_us(self) -> float:
        """Predicted time of a run without recomputation, by first implementations."""
        return sum(operator.implementations[0].time_us for operator in self.profile.graph.operators)

    def of_schedule(self, schedule: Schedule, budget_bytes: int | None = None) -> "MemoryPlan":
        """Return the plan with another schedule, of which no bound is known.

        Parameters
        ----------
        budget_bytes : None: the schedule's peak.
        """
        proof = verify(self.profile.graph, schedule, budget_bytes)
        settings = {
            key: setting for key, setting in self.settings.items() if key != "energy_bound_uj"
        }
        return replace(
            self,
            budget_bytes=budget_bytes or proof.peak_bytes,
            schedule=schedule,
            peak_bytes=proof.peak_bytes,
            time_us=proof.time_us,
            bound_us=0.0,
            settings=settings,
        )

    def verify(self) -> VerifiedFigures:
        """Prove the schedule on the profile's graph, and the figures predicted.

        Raises
        ------
        ScheduleError : naming the step, or the figure that differs.
        """
        proof = verify(self.profile.graph, self.schedule, self.budget_bytes)
        if proof.peak_bytes != self.peak_bytes:
            raise ScheduleError(
                f"peak_bytes is {self.peak_bytes}, the replay's peak is {proof.peak_bytes}"
            )
        if abs(proof.time_us - self.time_us) > _CLOSE * max(proof.time_us, self.time_us):
            raise ScheduleError(f"time_us is {self.time_us!r}, the replay's is {proof.time_us!r}")
        if self.bound > self.cost * (1 + _SOLVED):
            raise ScheduleError(f"the bound is {self.bound!r}, the plan needs {self.cost!r}")
        return proof

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the artifact's head and tables."""
        profile = self.profile.to_artifact()
        head = {
            "profile": dict(profile.head),
            "profile_digest": profile.digest,
            "origin": dict(self.profile.provenance),
            "budget_bytes": self.budget_bytes,
            "forward_steps": self.schedule.forward_steps,
            "peak_bytes": self.peak_bytes,
            "time_us": self.time_us,
            "bound_us": self.bound_us,
            "settings": dict(self.settings),
        }
        steps = [(step.operator, step.implementation) for step in self.schedule.steps]
        return head, {**profile.tables, "steps": columns_of(steps, _STEPS)}

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str = "memory plan") -> "MemoryPlan":
        """Rebuild a plan; `verify` proves it.

        Raises
        ------
        ArtifactError : naming the field, what was found and what is needed.
        """
        head = Field(artifact.head, source, ArtifactError)
        tables = {name: table for name, table in artifact.tables.items() if name != "steps"}
        made_for = Artifact(
            kind=MemoryProfile.KIND,
            schema=MemoryProfile.SCHEMA,
            head=head.at("profile").read(fields.table),
            tables=tables,
            provenance=head.at("origin").read(fields.table),
        )
        if head.at("profile_digest").text() != made_for.digest:
            raise head.at("profile_digest").wrong(f"that of 'profile', {made_for.digest}")
        steps = artifact.numbers("steps", _STEPS, source)
        columns = [steps[name].tolist() for name in _STEPS]
        rows = Field(list(zip(*columns, strict=True)), f"{source}: table 'steps'", ArtifactError)
        order = tuple(
            Step(*(row.at(part).integer(0, _MOST_STEPS) for part in range(2)))
            for row in rows.items()
        )
        time_us, bound_us = (_time(head.at(name)) for name in ("time_us", "bound_us"))
        if bound_us > time_us * (1 + _SOLVED):
            raise head.at("bound_us").wrong(f"at most 'time_us', {time_us!r}")
        return cls(
            profile=MemoryProfile.from_artifact(made_for, f"{source}: profile"),
            budget_bytes=head.at("budget_bytes").integer(0, _MOST_BYTES),
            schedule=Schedule(
                steps=order, forward_steps=head.at("forward_steps").integer(0, len(order))
            ),
            peak_bytes=head.at("peak_bytes").integer(0, _MOST_BYTES),
            time_us=time_us,
            bound_us=bound_us,
            settings=_settings(head.at("settings")),
            provenance=artifact.provenance,
        )


def _settings(value: Field) -> Mapping[str, Any]:
    settings = value.read(fields.table)
    if "watts" in settings:
        read_watts(value.at("watts"))
        _time(value.at("energy_bound_uj", default=0.0))
    return settings


def _time(value: Field) -> float:
    time_us = value.read(fields.number)
    if not 0 <= time_us < float("inf"):
        raise value.wrong("0 or more microseconds (microjoules for an energy)")
    return time_us
