"""Measuring: probe links, fit alpha and beta, group hosts, find what links share."""

from headrace.collectives.measure.profile import Profile
from headrace.collectives.measure.survey import Effort, survey

__all__ = ["Effort", "Profile", "survey"]
