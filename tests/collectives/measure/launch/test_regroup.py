"""Ranks that meet in torch's store go on without one that dies."""

import subprocess
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from headrace.collectives.measure import Profile
from headrace.job.load import LOAD
from headrace.testbed import Testbed, TestbedSpec
from tests.conformance import warm

JOB = Path(__file__).with_name("store_job.py")
SPEC = TestbedSpec.from_table({"racks": [{"hosts": 4}], "defaults": {"host_rate": "400mbit"}})


def run(folder: Path, victim: int, point: str, store: TCPStore | None = None) -> list[int]:
    """Run the job on four hosts of a loopback testbed; returns the exit codes by rank."""
    store = store or TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with Testbed.up(SPEC, fallback=True) as testbed:
        ranks: list[subprocess.Popen[bytes]] = [
            testbed.popen(
                host.name,
                warm.command(str(JOB), str(folder), str(victim), point, number=rank),
                env={
                    **warm.environment(),
                    "RANK": str(rank),
                    "WORLD_SIZE": "4",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(store.port),
                    "TORCHELASTIC_USE_AGENT_STORE": "True",  # it outlives the ranks
                },
            )
            for rank, host in enumerate(testbed.hosts)
        ]
        return [rank.wait(60) for rank in ranks]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("victim", "point"), [(2, "round-robin, round 2"), (0, "link")])
def test_the_others_finish_the_profile(tmp_path: Path, victim: int, point: str) -> None:
    codes = run(tmp_path, victim, point)
    assert codes[victim] == -9
    assert [code for rank, code in enumerate(codes) if rank != victim] == [0, 0, 0]
    profile = Profile.load(tmp_path / "found.profile")
    assert profile.topology.ranks == 3
    assert LOAD in profile.provenance
    [lost] = profile.provenance["lost"]
    assert lost["rank"] == victim
    assert lost["host"] not in profile.topology.hosts


@pytest.mark.slow
def test_measuring_again_over_a_store_that_outlives_it(tmp_path: Path) -> None:
    """The second time ranks read the secret and the addresses that the first had left."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for _ in range(2):
        assert run(tmp_path, 0, "at no point", store) == [0, 0, 0, 0]
        assert Profile.load(tmp_path / "found.profile").topology.ranks == 4
        (tmp_path / "found.profile").unlink()
