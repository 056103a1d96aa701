"""Measuring: probe links, fit alpha and beta, group hosts, find what links share."""

from headrace.collectives.measure.budget import ProbeEffort
from headrace.collectives.measure.survey import measure_ranks, survey
from headrace.topology.profile import Profile

__all__ = ["ProbeEffort", "Profile", "measure_ranks", "survey"]
