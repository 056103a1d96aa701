"""docs/adding-a-capability.md is true: its modules make a capability, in a folder of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.old_files_test import WRITTEN

SAMPLED = pytest.mark.sampled(2)

PAGE = Path(__file__).parent.parent / "docs" / "adding-a-capability.md"
MAIN = (
    "import sys, headrace; headrace.__path__.append(sys.argv.pop(1)); "
    "from headrace.cli.main import main; main()"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the capability of the page."""
    folder = tmp_path_factory.mktemp("added")
    kinds, registered, commands, settings, errors = re.findall(
        r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL
    )
    for name, text in (
        ("__init__.py", '"""Echoes: texts, kept."""\n'),
        ("errors.py", errors),
        ("settings.py", settings),
        ("kinds.py", kinds),
        ("cli/__init__.py", registered),
        ("cli/app.py", commands),
    ):
        path = folder / "echoes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def headrace(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAIN, str(folder), *words]
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_commands_are_found_by_name(folder: Path) -> None:
    found = headrace(folder, "--help")
    assert found.returncode == 0, found.stderr
    assert "echoes" in found.stdout
    assert "collectives" in found.stdout
    assert headrace(folder, "echoes", "count", "four").stdout == "4\n"


@SAMPLED
def test_the_doctor_asks_it_for_its_needs(folder: Path) -> None:
    asked = headrace(folder, "doctor", "echoes", HEADRACE_CACHE=str(folder / "absent"))
    assert asked.returncode == 0, asked.stderr
    assert re.search(r"^echoes write +can run$", asked.stdout, re.MULTILINE)
    assert "echoes count" not in headrace(folder, "doctor", "echoes", "write").stdout


@SAMPLED
def test_help_describes_it_from_the_registry(folder: Path) -> None:
    """The capabilities are in the first sentence, the kinds of artifacts at FILE of every verb."""
    names = "collectives, compression, echoes, embeddings, index, memory"
    assert names in " ".join(headrace(folder, "--help").stdout.split())
    for verb in ("show", "verify", "report"):
        words = re.findall(r"[\w-]+", headrace(folder, verb, "--help").stdout)
        assert {"echo", "memory-plan", "index-plan", "compression-plan", "plan"} <= {*words}


def test_errors_of_the_generic_verbs_describe_it(folder: Path) -> None:
    refused = headrace(folder, "verify", str(WRITTEN / "topology.headrace"))
    assert refused.returncode == 2
    assert re.search(r"field 'kind' is 'topology', needs one of [^:]*\becho\b", refused.stderr)


@SAMPLED
def test_the_generic_verbs_take_its_artifacts(folder: Path) -> None:
    wrote = headrace(folder, "echoes", "write", "hello", "a.echo")
    assert wrote.returncode == 0, wrote.stderr
    assert "hello" in headrace(folder, "show", "a.echo").stdout
    assert re.fullmatch(r"ok [0-9a-f]{12} hello\n", headrace(folder, "verify", "a.echo").stdout)
    drawn = headrace(folder, "report", "a.echo", "-o", "a.html")
    assert drawn.returncode == 0, drawn.stderr
    assert "a.echo: hello" in (folder / "a.html").read_text()


@SAMPLED
def test_its_settings_are_read_and_known(folder: Path) -> None:
    wrote = headrace(folder, "echoes", "write", "ho", "c.echo", HEADRACE_ECHO_TIMES="3")
    assert (wrote.returncode, wrote.stderr) == (0, "")
    assert "hohoho" in headrace(folder, "show", "c.echo").stdout
    refused = headrace(folder, "echoes", "write", "ho", "c.echo", HEADRACE_ECHO_TIMES="many")
    assert refused.returncode == 2
    assert "HEADRACE_ECHO_TIMES is 'many', needs 1 to 9" in refused.stderr
    for name, near in (("ECHO_TIME", "ECHO_TIMES"), ("TREADS", "THREADS")):
        wrote = headrace(folder, "echoes", "write", "ho", "c.echo", **{f"HEADRACE_{name}": "3"})
        assert f"variable HEADRACE_{name} is unknown to headrace" in wrote.stderr
        assert f"did you mean HEADRACE_{near}?" in wrote.stderr


def test_shared_settings_know_its_variables(folder: Path) -> None:
    program = (
        "import sys, headrace; headrace.__path__.append(sys.argv[1]); "
        "headrace.Settings.from_environment()"
    )
    for name, warned in (("ECHO_TIMES", False), ("ECHO_TIME", True)):
        found = subprocess.run(
            [sys.executable, "-c", program, str(folder)],
            env={**os.environ, f"HEADRACE_{name}": "3"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ("did you mean HEADRACE_ECHO_TIMES?" in found.stderr) == warned


def test_its_errors_end_a_command_in_one_line(folder: Path) -> None:
    refused = headrace(folder, "echoes", "write", "", "d.echo")
    assert refused.returncode == 2
    assert refused.stderr == "error: the text is empty, needs at least one character\n"


def test_without_it_the_kind_is_unknown_and_errors_list_the_known_ones(folder: Path) -> None:
    headrace(folder, "echoes", "write", "hello", "b.echo")
    command = [sys.executable, "-m", "headrace", "verify", "b.echo"]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "field 'kind' is 'echo'" in found.stderr
    assert "plan-book" in found.stderr
