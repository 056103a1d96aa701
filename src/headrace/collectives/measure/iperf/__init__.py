"""Results of iperf3 as a profile: `read` parses a file, `profile` makes one network of many."""

from headrace.collectives.measure.iperf.profile import import_iperf
from headrace.collectives.measure.iperf.read import Run, read_round_trips, read_run

__all__ = ["Run", "import_iperf", "read_round_trips", "read_run"]
