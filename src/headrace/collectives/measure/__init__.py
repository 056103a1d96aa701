"""Measuring: probe links, fit alpha and beta, group hosts, find what links share."""

from headrace.collectives.measure.budget import ProbeEffort, ProgressCallback
from headrace.collectives.measure.probes.group_prober import Prober, Regroup, Runner
from headrace.collectives.measure.probes.probe import Flow, Manner, Probe
from headrace.collectives.measure.survey import measure_ranks, survey
from headrace.topology.profile import Profile

__all__ = [
    "Flow",
    "Manner",
    "Probe",
    "ProbeEffort",
    "Prober",
    "Profile",
    "ProgressCallback",
    "Regroup",
    "Runner",
    "measure_ranks",
    "survey",
]
