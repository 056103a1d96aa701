"""Lower bounds on the time of all schedules, each with its formula and the graph it holds for."""

from headrace.collectives.plan.bound.bound import Bound, Term, lower_bound

__all__ = ["Bound", "Term", "lower_bound"]
