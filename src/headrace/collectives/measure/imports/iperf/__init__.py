"""Import of iperf3 results: `read` parses a file, `profile` combines files into a profile."""

from headrace.collectives.measure.imports.iperf.profile import profile_from_iperf
from headrace.collectives.measure.imports.iperf.read import IperfRun, read_round_trips, read_run

__all__ = ["IperfRun", "profile_from_iperf", "read_round_trips", "read_run"]
