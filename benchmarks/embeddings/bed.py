"""The network of timed jobs: trainers, a server's host, and that of the cacher and readers."""

from headrace.testbed import TestbedSpec

MBIT = 1000
SLOW_MBIT = 200


def spec(trainers: int, mbit: int) -> TestbedSpec:
    """Return hosts of one rack at one rate: trainers first, then the server's, the cacher's."""
    return TestbedSpec.from_table(
        {
            "name": "rows",
            "defaults": {"host_rate": f"{mbit}mbit"},
            "racks": [{"hosts": trainers + 2}],
        }
    )
