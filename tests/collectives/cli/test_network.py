"""Files of a network, as commands take them."""

from pathlib import Path

import pytest

from headrace.collectives.cli.network import read_network, read_topology
from headrace.collectives.plan.book import build_book
from headrace.errors import InputError
from headrace.topology.presets import racks


def test_the_option_of_a_network_takes_a_plan_book_as_its_help_says(tmp_path: Path) -> None:
    """``collectives trace --topology network.book`` was refused."""
    topology = racks((2,), host_bytes_per_s=1e9, uplink_bytes_per_s=1e9)
    topology.save(tmp_path / "topology")
    build_book(topology, collectives=("allreduce",), sizes=[1 << 20]).save(tmp_path / "book")
    assert read_topology(tmp_path / "topology") == topology
    assert read_topology(tmp_path / "book") == topology
    with pytest.raises(InputError, match="needs 'profile'"):  # what is planned for has no plans
        read_network(tmp_path / "book")
