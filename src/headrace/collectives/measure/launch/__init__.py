"""Launchers of a survey: one light process per rank of a testbed, or the ranks of torchrun."""

from headrace.collectives.measure.launch.agents import measure_testbed
from headrace.collectives.measure.launch.torchrun import measure_torchrun

__all__ = ["measure_testbed", "measure_torchrun"]
