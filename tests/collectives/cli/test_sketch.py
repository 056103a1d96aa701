"""``headrace collectives sketch``: what it writes is read by synthesis."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headrace.collectives.cli.sketch import sketch_command
from headrace.collectives.plan.generators.taccl.sketch.logical import apply_sketch
from headrace.collectives.plan.generators.taccl.sketch.parse import load_sketch
from headrace.errors import InputError
from headrace.topology.presets import dgx1


def test_the_best_sketch_is_written_with_what_was_tried(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command("sketch")(sketch_command)
    topology = dgx1(nodes=2)
    topology.save(tmp_path / "t")
    arguments = [tmp_path / "t", "-o", tmp_path / "s.json", "--collective", "allgather"]
    size = ["--size", "16MB", "--effort", "quick"]
    outcome = CliRunner().invoke(app, [*map(str, arguments), *size], env={"COLUMNS": "200"})
    assert outcome.exit_code == 0, outcome.output
    found = load_sketch(tmp_path / "s.json")
    apply_sketch(found, topology)
    assert found.input_bytes == 1_000_000
    assert found.name in outcome.output
    assert "direct-map" in outcome.output
    assert "more" in outcome.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--root", "2"], "--root is 2, but allreduce has no root"),
        (["--collective", "custom"], "custom, which only a demand describes; needs one of allred"),
    ],
)
def test_what_it_would_ignore_is_refused(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    """A root had no effect; a collective without a name was an error about its slots."""
    app = typer.Typer()
    app.command("sketch")(sketch_command)
    dgx1().save(tmp_path / "t")
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(
            app,
            [str(tmp_path / "t"), "-o", str(tmp_path / "s.json"), *arguments],
            catch_exceptions=False,
        )
