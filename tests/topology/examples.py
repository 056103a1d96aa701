"""Arguments of a small instance of every preset that needs some."""

from typing import Any

EXAMPLES: dict[str, dict[str, Any]] = {
    "ring": {"n": 5},
    "mesh": {"shape": (3, 4)},
    "torus": {"shape": (2, 3, 4)},
    "hub_and_spoke": {"n": 5},
    "fat_tree": {"shape": (3, 2, 2), "oversubscription": 2.0},
    "uniform": {"ranks": 4},
    "racks": {"hosts_per_rack": (2, 3), "host_bytes_per_s": 50e6, "uplink_bytes_per_s": 12.5e6},
}
