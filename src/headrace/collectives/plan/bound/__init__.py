"""What no schedule can beat: lower bounds, each with its formula and the graph it holds for."""

from headrace.collectives.plan.bound.bound import Bound, Term, lower_bound

__all__ = ["Bound", "Term", "lower_bound"]
