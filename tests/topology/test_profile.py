from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import headrace.artifact as artifact_io
from headrace.artifact import Artifact
from headrace.collectives.measure import Profile, survey
from headrace.errors import ArtifactError, TopologyError
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
    Artifact(kind="profile", schema=2, head=head, tables=whole.tables).save(tmp_path / "p")
    with pytest.raises(ArtifactError, match="'groups' is missing"):
        Profile.load(tmp_path / "p")


def test_groups_that_lose_a_rank_are_refused(profile: Profile) -> None:
    head = dict(profile.to_artifact().head) | {"groups": [[0, 1], [2]]}
    tables = profile.to_artifact().tables
    with pytest.raises(ArtifactError, match=r"groups.*\[0, 1, 2\]"):
        Profile.from_artifact(Artifact(kind="profile", schema=2, head=head, tables=tables))


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


@pytest.mark.parametrize("found", [None, "x", [["a"]], [[0.5, 1, 2, 3]], True])
@pytest.mark.parametrize("field", ["topology", "groups", "measured_at", "took_s", "valid_for_s"])
def test_a_bad_field_is_refused(profile: Profile, field: str, found: object) -> None:
    whole = profile.to_artifact()
    with pytest.raises((ArtifactError, TopologyError), match=f"here: .*{field}"):
        Profile.from_artifact(replace(whole, head={**whole.head, field: found}), "here")


@pytest.mark.parametrize("found", [-1, 1e300])
def test_an_impossible_time_is_refused(profile: Profile, found: float) -> None:
    with pytest.raises(ArtifactError, match="field 'measured_at' is .*, needs seconds from 0"):
        replace(profile, measured_at=found)


@pytest.mark.parametrize("name", ["samples.us", "fits.src"])
def test_a_missing_column_is_named(profile: Profile, name: str) -> None:
    whole = profile.to_artifact()
    table, column = name.split(".")
    columns = {key: kept for key, kept in whole.tables[table].items() if key != column}
    with pytest.raises(ArtifactError, match=f"column '{name}' is missing"):
        Profile.from_artifact(replace(whole, tables={**whole.tables, table: columns}))
    columns[column] = np.array(["x"] * len(whole.tables[table][column]), dtype=object)
    with pytest.raises(ArtifactError, match=f"column '{name}' has type object"):
        Profile.from_artifact(replace(whole, tables={**whole.tables, table: columns}))


@pytest.mark.parametrize("table", ["samples", "fits", "pairs"])
def test_ranks_that_are_no_integers_are_refused(profile: Profile, table: str) -> None:
    """Planning failed with an index error."""
    columns = {**getattr(profile, table)}
    columns["src"] = columns["src"].astype(float)
    with pytest.raises(ArtifactError, match="column 'src' has type float64, needs integers"):
        replace(profile, **{table: columns})
