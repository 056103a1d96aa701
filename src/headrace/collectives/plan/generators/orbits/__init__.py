"""Plans for networks in which all ranks are alike: found, proven and stored as one rank's sends."""

from headrace.collectives.plan.generators.orbits.bound import OrbitBound, orbit_bound
from headrace.collectives.plan.generators.orbits.build import OrbitFound, plan_orbits
from headrace.collectives.plan.generators.orbits.group import RegularGroup, group_of
from headrace.collectives.plan.generators.orbits.plan import OrbitPlan
from headrace.collectives.plan.generators.orbits.simulate import (
    OrbitCosts,
    OrbitSimulation,
    expand,
    expanded_schedule,
    simulate_orbits,
)
from headrace.collectives.plan.generators.orbits.verify import OrbitProof, verify_orbits

__all__ = [
    "RegularGroup",
    "OrbitBound",
    "OrbitCosts",
    "OrbitFound",
    "OrbitPlan",
    "OrbitProof",
    "OrbitSimulation",
    "expand",
    "expanded_schedule",
    "group_of",
    "orbit_bound",
    "plan_orbits",
    "simulate_orbits",
    "verify_orbits",
]
