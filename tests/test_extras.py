import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

REPORT = f"""
from pathlib import Path
from headrace.report import page_of
page_of(Path({str(ROOT / "tests" / "golden" / "written" / "profile.headrace")!r}))
"""

METRICS = """
from headrace.index import IndexMetrics
"""


@pytest.mark.parametrize(
    ("package", "extra", "code", "requirements"),
    [
        ("plotly", "report", REPORT, "runtime.txt"),
        ("prometheus_client", "metrics", METRICS, "runtime.txt"),
        ("ray", "ray", "from headrace.launch.ray_cluster import RayCluster", "test-slow.txt"),
    ],
)
def test_a_missing_extra_is_named_with_its_command(
    package: str, extra: str, code: str, requirements: str
) -> None:
    blocked = f"import sys; sys.modules[{package!r}] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("headrace.InputError: "), done.stderr
    assert package in last
    assert f"pip install 'headrace[{extra}]'" in last

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    distribution = package.replace("_", "-")
    assert any(each.startswith(distribution) for each in project["optional-dependencies"][extra])
    assert not any(each.startswith(distribution) for each in project["dependencies"])
    # `make` installs what this file names, extras too
    assert f"\n{package}==" in (ROOT / "requirements" / requirements).read_text()


def test_all_has_every_extra_but_that_of_tests() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (everything,) = extras["all"]
    assert everything == f"headrace[{','.join(sorted(set(extras) - {'all', 'test'}))}]"


def test_what_is_linked_into_a_wheel_has_its_licence_in_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (pattern,) = set(project["license-files"]) - {"LICENSE"}
    assert {path.stem for path in ROOT.glob(pattern)} == {"OpenSSL", "nanobind"}


def test_a_page_without_charts_needs_no_plotly(tmp_path: Path) -> None:
    result = {"claim": "words", "bars": [], "tables": {"t": [{"a": 1}]}, "notes": ["a note"]}
    (tmp_path / "r.json").write_text(json.dumps(result))
    code = (
        "import sys; sys.modules['plotly'] = None\n"
        "from pathlib import Path\n"
        "from headrace.report import page_of\n"
        f"print(page_of(Path({str(tmp_path / 'r.json')!r})).html())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Benchmark words" in done.stdout, done.stderr
