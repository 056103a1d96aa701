"""``headrace topology infer``."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import headrace.artifact as artifact_io
from benchmarks.instruments.simulated_hardware import SimulatedBox, simulate_probes
from headrace.collectives.cli.infer import infer_command
from headrace.errors import ArtifactError, InputError
from headrace.topology import Topology
from headrace.topology.presets import ndv2

app = typer.Typer()
app.command("infer")(infer_command)
BOX = SimulatedBox(
    switch_cpu=(0, 0, 1, 1), gpu_switch=(0, 0, 1, 1, 2, 2, 3, 3), nic_cpu=1, nic_switch=2
)


def run(*arguments: object) -> str:
    outcome = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "120"})
    if outcome.exception is not None:
        raise outcome.exception
    return outcome.output


def test_answers_and_order(tmp_path: Path) -> None:
    simulate_probes(BOX, noise=0.03).save(tmp_path / "probes")
    ndv2(2).save(tmp_path / "machine")
    alone = run(tmp_path / "probes")
    for text in ("{0 1}, {2 3}, {4 5}, {6 7}", "{4 5}", ">0.9999", "1 (loopbacks by CPU"):
        assert text in alone
    assert "CUDA_VISIBLE_DEVICES" not in alone
    out = tmp_path / "topology"
    placed = run(tmp_path / "probes", "--topology", tmp_path / "machine", "-o", out)
    assert "CUDA_VISIBLE_DEVICES=" in placed
    order = [int(x) for x in placed.partition("CUDA_VISIBLE_DEVICES=")[2].split("\n")[0].split(",")]
    assert order[0] in (4, 5)
    assert len(Topology.load(out).shared) == len(ndv2(2).shared) + 16
    facts = artifact_io.load(out).provenance["inferred"]
    assert facts["nic_gpus"] == [4, 5]
    assert facts["visible_devices"] == order


def test_wrong_arguments(tmp_path: Path) -> None:
    simulate_probes(BOX).save(tmp_path / "probes")
    for arguments, says in (
        (("-o", tmp_path / "x"), "needs --topology"),
        (("--near-nic", "zero"), "--near-nic is 'zero'"),
        (("--confidence", "2"), "--confidence is 2.0"),
    ):
        with pytest.raises(InputError, match=says):
            run(tmp_path / "probes", *arguments)
    with pytest.raises(ArtifactError, match="cannot be read"):
        run(tmp_path / "none")
