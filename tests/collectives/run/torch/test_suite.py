"""torch's own tests of backends pass with headrace in Gloo's place.

Five of the 90 that run without a GPU failed: a timeout and a rank that was missing at a monitored
barrier had other words than Gloo's, a barrier with a timeout of zero waited for minutes, and one
compares the backend's name.
"""

from pathlib import Path

import pytest

from benchmarks.instruments.torch_suite import DIFFERENCES, SUITE_LIMIT_S, run_suite

DOCS = Path(__file__).parents[4] / "docs"


@pytest.mark.slow
@pytest.mark.timeout(SUITE_LIMIT_S + 60)
def test_the_suite_of_torch_passes_but_for_what_is_listed() -> None:
    pytest.importorskip("expecttest", reason="torch's tests need it")
    result = run_suite()
    unexpected = {name: text for name, text in result.failed.items() if name not in DIFFERENCES}
    assert not unexpected
    assert len(result.passed) >= 89, result.skipped


def test_what_differs_is_in_the_docs() -> None:
    text = (DOCS / "executor.md").read_text()
    for name, reason in DIFFERENCES.items():
        assert f"| `{name}` | {reason} |" in text
