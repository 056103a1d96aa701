"""Emulated clusters on one Linux machine: namespaces as hosts, bridges as racks, shaped links."""

from headrace.testbed.launch import rank_environment, rank_roles, run_ranks
from headrace.testbed.loopback import pace_rate
from headrace.testbed.spec import Host, Rack, TestbedSpec
from headrace.testbed.state import Record
from headrace.testbed.testbed import Testbed

__all__ = [
    "Host",
    "Rack",
    "Testbed",
    "Record",
    "TestbedSpec",
    "pace_rate",
    "rank_environment",
    "rank_roles",
    "run_ranks",
]
