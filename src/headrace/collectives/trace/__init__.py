"""One collective step by step: the records of all ranks, on one clock, and the prediction."""

from headrace.collectives.trace.clocks import Offset, clock_offset
from headrace.collectives.trace.events import trace_events
from headrace.collectives.trace.gathering import Trace, gather
from headrace.collectives.trace.lanes import LaneCounters, lane_counters
from headrace.collectives.trace.times import Times, measured, predicted

__all__ = [
    "LaneCounters",
    "Offset",
    "Times",
    "Trace",
    "clock_offset",
    "gather",
    "lane_counters",
    "measured",
    "predicted",
    "trace_events",
]
