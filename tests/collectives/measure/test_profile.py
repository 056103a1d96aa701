from pathlib import Path

import numpy as np
import pytest

import headrace.artifact as artifact_io
from headrace.artifact import Artifact
from headrace.collectives.measure import Profile, survey
from headrace.errors import ArtifactError
from tests.collectives.measure.network import Network, shuffled_racks


@pytest.fixture(scope="module")
def profile() -> Profile:
    topology, _ = shuffled_racks((2, 2), 0)
    return survey(Network(topology, noise=0.02), topology.hosts)


def test_a_profile_goes_to_disk_and_back(profile: Profile, tmp_path: Path) -> None:
    profile.save(tmp_path / "p.profile")
    back = Profile.load(tmp_path / "p.profile")
    assert back.digest == profile.digest
    assert back.topology.digest == profile.topology.digest
    assert back.groups == profile.groups
    assert np.array_equal(back.samples["us"], profile.samples["us"])
    back.save(tmp_path / "again.profile")
    assert (tmp_path / "again.profile").read_bytes() == (tmp_path / "p.profile").read_bytes()


def test_a_missing_field_is_named(profile: Profile, tmp_path: Path) -> None:
    whole = profile.to_artifact()
    head = {name: value for name, value in whole.head.items() if name != "groups"}
    Artifact(kind="profile", schema=1, head=head, tables=whole.tables).save(tmp_path / "p")
    with pytest.raises(ArtifactError, match="'groups' is missing"):
        Profile.load(tmp_path / "p")


def test_groups_that_lose_a_rank_are_refused(profile: Profile) -> None:
    head = dict(profile.to_artifact().head) | {"groups": [[0, 1], [2]]}
    tables = profile.to_artifact().tables
    with pytest.raises(ArtifactError, match=r"groups.*\[0, 1, 2\]"):
        Profile.from_artifact(Artifact(kind="profile", schema=1, head=head, tables=tables))


def test_another_kind_is_refused(profile: Profile, tmp_path: Path) -> None:
    profile.topology.save(tmp_path / "t.topology")
    with pytest.raises(ArtifactError, match="kind"):
        Profile.load(tmp_path / "t.topology")
    assert artifact_io.load(tmp_path / "t.topology").kind == "topology"


def test_it_expires(profile: Profile) -> None:
    assert not profile.expired(profile.measured_at + 1)
    assert profile.expired(profile.measured_at + profile.valid_for_s + 1)


def test_the_summary_names_groups_and_shared_capacities(profile: Profile) -> None:
    rows = dict(profile.summary())
    assert rows["ranks"] == "4 on 4 hosts"
    assert {"group 0", "group 1"} <= set(rows)
    assert "Mbit/s" in rows["uplink-out-0"]


def test_variances_are_kept(profile: Profile) -> None:
    assert len(profile.fits["src"]) == 12
    assert (profile.fits["beta_variance"] > 0).all()
