"""Predicted time of a program under a cost model: message by message, or streaming."""

from headrace.collectives.plan.cost.streaming import Simulation, simulate

__all__ = ["Simulation", "simulate"]
