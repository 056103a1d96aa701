"""Predicted time of a program under a cost model: message by message, or streaming."""

from headrace.collectives.plan.cost.model import CostModel
from headrace.collectives.plan.cost.streaming import Simulation, simulate

__all__ = [
    "CostModel",
    "Simulation",
    "simulate",
]
