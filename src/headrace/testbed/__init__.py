"""Emulated clusters on one Linux machine: namespaces as hosts, bridges as racks, shaped links."""

from typing import TYPE_CHECKING

from headrace.facades import deferred_names

if TYPE_CHECKING:
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

_MODULES = {
    "Host": "spec",
    "Rack": "spec",
    "Record": "state",
    "Testbed": "testbed",
    "TestbedSpec": "spec",
    "pace_rate": "loopback",
    "rank_environment": "launch",
    "rank_roles": "launch",
    "run_ranks": "launch",
}
__getattr__, __dir__ = deferred_names(__name__, __all__, _MODULES)
