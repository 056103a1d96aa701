"""Record a table of `recorded/`: survey a testbed once and keep the bandwidth of its pairs.

    python -m benchmarks.instruments.record

24 hosts in five racks of different sizes, whose uplinks are as fast as one host. Only rates are
shaped there, so latency does not depend on position, and bandwidth alone is kept.
"""

import sys
from dataclasses import replace

from benchmarks.instruments.beds import Bed
from benchmarks.instruments.network_table import RECORDED, save_table, table_of_profile
from headrace.collectives.measure.budget import ProbeEffort
from headrace.collectives.measure.launch.agents import measure_testbed
from headrace.testbed import Testbed

BED = Bed(name="24-hosts", racks=(7, 6, 5, 4, 2), host_mbit=50, uplink_mbit=50, seed=1)


def main() -> int:
    """Survey and save; the hosts are in random order."""
    with Testbed.up(BED.spec, fallback=False) as testbed:
        profile = measure_testbed(testbed, BED.rank_hosts, effort=ProbeEffort(budget_s=60.0))
    rack_of = {host.name: host.rack for host in BED.spec.hosts}
    names = profile.topology.hosts
    positions = [(0, 0, 0, 0, rack_of[name], index) for index, name in enumerate(names)]
    table = table_of_profile(profile, positions, name="testbed of 24 hosts in 5 racks")
    RECORDED.mkdir(exist_ok=True)
    save_table(replace(table, latency_us=None), RECORDED / "testbed-24.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
