"""Error classes that no test expects."""

from pathlib import Path

from benchmarks.instruments.error_classes import untested_error_classes

EXPECTING = """
with pytest.raises((InputError, headrace.memory.BudgetError), match="x"):
    pass
try:
    pass
except ForkError:
    pass
raise CaptureError("not expected, but raised")
"""


def test_classes_are_expected_by_pytest_and_by_except_clauses(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(EXPECTING)
    untested = untested_error_classes(tmp_path)
    assert {"CaptureError", "CommunicationError"} <= {*untested}
    assert not {"InputError", "BudgetError", "ForkError"} & {*untested}


def test_every_public_class_is_expected_by_a_test() -> None:
    assert untested_error_classes() == []
