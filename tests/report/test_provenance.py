"""Provenance in words."""

from headrace.job.load import MachineLoad
from headrace.report.provenance import labelled_rows


def test_values_are_labelled_by_their_paths() -> None:
    load = MachineLoad(seconds=1.0, processors=2, load_average=3.25, waited_share=0.5)
    provenance = {
        "made_by": "headrace",
        "effort": {"budget_s": 12.0, "all": True, "inner": {"ranks": [1, 2], "lost": []}},
        "spread": 0.8707340629734,
        "sizes": None,
        **load.to_provenance(),
        "rows": [{"a": 1}],
    }
    assert labelled_rows(provenance) == [
        ("made by", "headrace"),
        ("effort: budget s", "12"),
        ("effort: all", "yes"),
        ("effort: inner: ranks", "1, 2"),
        ("effort: inner: lost", "none"),
        ("spread", "0.870734"),
        ("sizes", "not stated"),
        ("load", load.text),
        ("rows", "a 1"),
    ]


def test_long_values_are_cut() -> None:
    assert labelled_rows({"a": "b" * 30}, most=10) == [("a", "b" * 7 + "...")]
