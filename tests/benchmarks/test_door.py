"""The door's own measurements."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.door import clone


def test_a_commands_stages_are_those_that_make_prints(tmp_path: Path) -> None:
    command = r"printf '\033[1m==> one\033[0m\nsaid\n\033[1m==> two of it\033[0m\n'"
    stages = list(clone.run_stages([command], tmp_path, {}))
    assert [stage.name for stage in stages] == [command, "one", "two of it"]


def test_a_command_that_fails_is_an_error_with_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        list(clone.run_stages(["echo what happened; exit 3"], tmp_path, {}))
    assert "what happened" in raised.value.output
