"""Measuring: probe links, fit alpha and beta, group hosts, find what links share."""

from headrace.collectives.measure.effort import ProbeEffort
from headrace.collectives.measure.profile import Profile
from headrace.collectives.measure.survey import measure_ranks, survey

__all__ = ["ProbeEffort", "Profile", "measure_ranks", "survey"]
