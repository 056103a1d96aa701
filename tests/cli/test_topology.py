import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.artifact import load
from headrace.cli.topology import app
from headrace.errors import ArtifactError, InputError, TopologyError
from headrace.topology import Topology
from headrace.topology.presets import PRESETS, dgx_a100, fat_tree, racks, ring, torus

SAMPLES = Path(__file__).parent.parent / "topology" / "samples"


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "160"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_presets_are_listed_with_their_facts() -> None:
    text = run("presets")
    for name in PRESETS:
        assert name in text
    assert "NVSwitch" in text


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["dgx_a100", "--nodes", "3"], dgx_a100(3)),
        (["dgx_a100", "--nodes", "2", "--inter", "rails"], dgx_a100(2, inter="rails")),
        (["dgx_a100", "--set", "alpha_us=2"], dgx_a100(alpha_us=2.0)),
        (["ring", "--ranks", "5", "--set", "one_way=true"], ring(5, one_way=True)),
        (["torus", "--shape", "2x3x4"], torus((2, 3, 4))),
        (
            ["fat_tree", "--shape", "4,2", "--set", "oversubscription=2"],
            fat_tree((4, 2), oversubscription=2.0),
        ),
        (
            ["racks", "--shape", "2x1", "--set", "host_bytes_per_s=1e9"]
            + ["--set", "uplink_bytes_per_s=5e8", "--set", "rank_order=2,0,1"],
            racks((2, 1), host_bytes_per_s=1e9, uplink_bytes_per_s=5e8, rank_order=(2, 0, 1)),
        ),
    ],
)
def test_a_preset_is_written(tmp_path: Path, arguments: list[str], wanted: Topology) -> None:
    text = run("preset", *arguments, "-o", tmp_path / "t")
    assert Topology.load(tmp_path / "t") == wanted
    assert f"{wanted.ranks} on" in text
    assert load(tmp_path / "t").provenance["preset"] == arguments[0]


@pytest.mark.parametrize("sample", sorted(SAMPLES.iterdir()), ids=lambda path: path.name)
def test_a_file_is_imported(tmp_path: Path, sample: Path) -> None:
    run("import", sample, "--nodes", "2", "-o", tmp_path / "t")
    assert len(Topology.load(tmp_path / "t").hosts) == 2


def test_rates_may_be_given(tmp_path: Path) -> None:
    run(
        *("import", SAMPLES / "dgx-a100.txt", "-o", tmp_path / "t", "--nodes", "2"),
        *("--nvlink-generation", "5", "--nic-rate", "50GB/s", "--format", "nvidia-smi"),
    )
    made = Topology.load(tmp_path / "t")
    assert {round(1e3 / k.beta_us_per_mb) for k in made.links} == {600, 50}


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["preset", "dgx9"], InputError, "preset 'dgx9' is unknown, needs one of: ndv2,"),
        (["preset", "ring", "--nodes", "2"], TopologyError, "ring has no parameter 'nodes'"),
        (["preset", "ring"], TopologyError, "preset ring needs parameter 'n'"),
        (["preset", "ndv2", "--shape", "4x4"], TopologyError, "ndv2 has no parameter 'shape'"),
        (["preset", "torus", "--shape", "4xx"], InputError, "--shape is '4xx', needs integers"),
        (["preset", "ring", "--set", "n"], InputError, "--set 'n' is none of preset ring, needs"),
        (["preset", "ring", "--set", "n=x"], InputError, "--set n is 'x', needs an integer"),
        (["import", "nowhere"], TopologyError, "nowhere: cannot be read"),
        (
            ["import", str(SAMPLES / "pcie.txt"), "--nvlink-generation", "9"],
            InputError,
            "--nvlink-generation is 9, needs 1 to 5",
        ),
        (
            ["import", str(SAMPLES / "pcie.txt"), "--nic-rate", "0GB/s"],
            InputError,
            "--nic-rate is '0GB/s', needs a number with",
        ),
    ],
)
def test_mistakes_are_named(
    tmp_path: Path, arguments: list[str], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        run(*arguments, "-o", tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_a_target_that_cannot_be_written_is_named_first(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        run("preset", "ndv2", "-o", tmp_path)


def test_the_file_is_a_topology_artifact(tmp_path: Path) -> None:
    run("preset", "ndv2", "-o", tmp_path / "t")
    assert json.loads((tmp_path / "t").read_bytes().splitlines()[0])["kind"] == "topology"
