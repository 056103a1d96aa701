"""Fixtures of the testbed's tests: a small spec, and a check that nothing is left behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testbed import Testbed, TestbedSpec, privileges, state, teardown


@pytest.fixture
def spec() -> TestbedSpec:
    return TestbedSpec.load(Path(__file__).parents[2] / "examples" / "testbed-2x2.toml")


@pytest.fixture
def namespaces() -> None:
    """Skip where namespaces cannot be made."""
    if reason := privileges.unavailable_reason():
        pytest.skip(f"needs network namespaces: {reason}")


@pytest.fixture
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A state directory of this test's own: other testbeds on the machine stay out of it."""
    directory = tmp_path / "state"
    directory.mkdir()
    monkeypatch.setattr(state, "state_directory", lambda: directory)
    yield directory
    for left in directory.iterdir():  # only after a failure
        teardown.remove(left)


@pytest.fixture
def testbed(namespaces: None, own_state: Path, spec: TestbedSpec) -> Iterator[Testbed]:
    devices = sorted(path.name for path in Path("/sys/class/net").iterdir())
    with Testbed.up(spec, fallback=False) as testbed:
        yield testbed
        assert sorted(path.name for path in Path("/sys/class/net").iterdir()) == devices
    assert_gone(testbed.run, own_state)
    assert sorted(path.name for path in Path("/sys/class/net").iterdir()) == devices


def assert_gone(run: str, directory: Path) -> None:
    assert teardown.namespaces_of(run) == []
    assert list(teardown.NAMES_DIRECTORY.glob(f"hr-{run}-*")) == []
    assert not (directory / run).exists()
