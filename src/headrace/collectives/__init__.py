"""Collectives: tensors between ranks, measured, planned, run, adapted."""

from typing import TYPE_CHECKING

from headrace.collectives.errors import (
    MscclError,
    MscclppError,
    ProgramError,
    SketchError,
    UnverifiedPlanError,
)
from headrace.facades import deferred_names

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.collectives.demand import Collective, Demand, DemandRow
    from headrace.collectives.measure.pcie.probes import HardwareProbes, ProbeKind, ProbeRow
    from headrace.collectives.plan.book import Entry, PlanBook
    from headrace.collectives.plan.generators.orbits.plan import OrbitPlan
    from headrace.collectives.plan.locality import RankGroups
    from headrace.collectives.plan.plan import Candidate, Plan
    from headrace.collectives.plan.predict import Predictor
    from headrace.collectives.program import Program, Schedule, Transfer
    from headrace.collectives.settings import CollectiveSettings
    from headrace.topology import Topology
    from headrace.topology.profile import Profile

__all__ = [
    "Candidate",
    "Collective",
    "CollectiveSettings",
    "Demand",
    "DemandRow",
    "Entry",
    "HardwareProbes",
    "MscclError",
    "MscclppError",
    "OrbitPlan",
    "Plan",
    "PlanBook",
    "Predictor",
    "ProbeKind",
    "ProbeRow",
    "Program",
    "ProgramError",
    "RankGroups",
    "Schedule",
    "SketchError",
    "Transfer",
    "UnverifiedPlanError",
    "predictor",
]

_MODULES = {
    "CollectiveSettings": "settings",
    "Candidate": "plan.plan",
    "Collective": "demand",
    "Demand": "demand",
    "DemandRow": "demand",
    "Entry": "plan.book",
    "HardwareProbes": "measure.pcie.probes",
    "OrbitPlan": "plan.generators.orbits.plan",
    "Plan": "plan.plan",
    "PlanBook": "plan.book",
    "Predictor": "plan.predict",
    "ProbeKind": "measure.pcie.probes",
    "ProbeRow": "measure.pcie.probes",
    "Program": "program",
    "RankGroups": "plan.locality",
    "Schedule": "program",
    "Transfer": "program",
}
__getattr__, __dir__ = deferred_names(__name__, __all__, _MODULES)


def predictor(source: "Topology | Profile | PlanBook | Path") -> "Predictor":
    """Return the predicted times of collectives on a network, by its plan book or by templates.

    Parameters
    ----------
    source : a plan book, a topology or profile, or a file that holds one of these.

    Raises
    ------
    ArtifactError : naming the file, and what it would need to hold.
    """
    from headrace.collectives.plan.predict import predictor_of  # planning is heavy to import

    return predictor_of(source)
