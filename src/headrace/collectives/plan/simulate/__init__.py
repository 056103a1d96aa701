"""How long a program takes under a cost model: message by message, or streaming as executed."""

from headrace.collectives.plan.simulate.simulate import Simulation, simulate

__all__ = ["Simulation", "simulate"]
