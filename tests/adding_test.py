"""docs/adding-a-capability.md is true: its modules make a capability, in a folder of their own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "adding-a-capability.md"
MAIN = (
    "import sys, headrace; headrace.__path__.append(sys.argv.pop(1)); "
    "from headrace.cli.main import main; main()"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the capability of the page."""
    folder = tmp_path_factory.mktemp("added")
    kinds, commands = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for name, text in (
        ("__init__.py", '"""Echoes: texts, kept."""\n'),
        ("kinds.py", kinds),
        ("cli/__init__.py", '"""Commands of ``headrace echoes``."""\n'),
        ("cli/app.py", commands),
    ):
        path = folder / "echoes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def headrace(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAIN, str(folder), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_commands_are_found_by_name(folder: Path) -> None:
    found = headrace(folder, "--help")
    assert found.returncode == 0, found.stderr
    assert "echoes" in found.stdout
    assert "collectives" in found.stdout
    assert headrace(folder, "echoes", "count", "four").stdout == "4\n"


def test_the_generic_verbs_take_its_artifacts(folder: Path) -> None:
    wrote = headrace(folder, "echoes", "write", "hello", "a.echo")
    assert wrote.returncode == 0, wrote.stderr
    assert "hello" in headrace(folder, "show", "a.echo").stdout
    assert re.fullmatch(r"ok [0-9a-f]{12} hello\n", headrace(folder, "verify", "a.echo").stdout)
    drawn = headrace(folder, "report", "a.echo", "-o", "a.html")
    assert drawn.returncode == 0, drawn.stderr
    assert "a.echo: hello" in (folder / "a.html").read_text()


def test_without_it_the_kind_is_unknown_and_errors_list_the_known_ones(folder: Path) -> None:
    headrace(folder, "echoes", "write", "hello", "b.echo")
    command = [sys.executable, "-m", "headrace", "verify", "b.echo"]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "field 'kind' is 'echo'" in found.stderr
    assert "plan-book" in found.stderr
