"""The doctor names every damage, and its mend, and finds nothing else wrong."""

from pathlib import Path

import pytest

from benchmarks.instruments.damaged import DAMAGES, HEALTHY, Damage, diagnose, mistakes


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the checks that are not ok on this machine, without a damage."""
    code, diagnosis, errors = diagnose(HEALTHY, tmp_path_factory.mktemp("healthy"))
    assert code == 0, errors
    return {finding["name"] for finding in diagnosis["findings"] if finding["status"] != "ok"} | {
        "namespaces"
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_a_damage_is_named_with_its_mend(damage: Damage, healthy: set[str], tmp_path: Path) -> None:
    code, diagnosis, errors = diagnose(damage, tmp_path)
    assert mistakes(damage, code, diagnosis, healthy) == [], errors
