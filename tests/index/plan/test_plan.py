"""The index plan: kept as it is, refused where it is damaged, its choice checked again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.artifact import Artifact
from headrace.errors import ArtifactError
from headrace.index.errors import ChoiceError
from headrace.index.plan.choose import plan
from headrace.index.plan.grid import grid
from headrace.index.plan.plan import CANDIDATES, IndexPlan
from tests.index.plan.models import FakeTrials, profile, random_model

DOCS = Path(__file__).parents[3] / "docs" / "index.md"


@pytest.fixture(scope="module")
def made() -> IndexPlan:
    trials = FakeTrials(lambda each: 1e6 + grid().index(each))
    return plan(profile(), model=random_model(), trial=trials, most_bytes_per_key=1e6)


def test_a_plan_is_saved_and_loaded(made: IndexPlan, tmp_path: Path) -> None:
    made.save(tmp_path / "plan")
    found = IndexPlan.load(tmp_path / "plan")
    assert found.digest == made.digest
    assert found.candidates == made.candidates
    assert found.most_bytes_per_key == 1e6
    assert found.provenance["model"] == {"data": "none"}
    found.verify()


def test_every_field_is_documented(made: IndexPlan) -> None:
    text = DOCS.read_text()
    for name in (*CANDIDATES, *made.to_artifact().head, *made.settings):
        assert f"`{name}`" in text, name


def test_a_wrong_choice_is_found(made: IndexPlan) -> None:
    first, second, *rest = made.candidates
    swapped = replace(made, candidates=(second, first, *rest))
    with pytest.raises(ChoiceError, match="candidate 1 .* is better than candidate 0"):
        swapped.verify()
    with pytest.raises(ChoiceError, match="candidate 0 takes 20 bytes per key, the cap is 19"):
        replace(made, most_bytes_per_key=19.0).verify()


def test_damaged_plans_are_refused(made: IndexPlan) -> None:
    whole = made.to_artifact()

    def head(**changes: Any) -> Artifact:
        return replace(whole, head={**whole.head, **changes})

    def column(name: str, value: float) -> Artifact:
        values = whole.tables["candidates"][name].copy()
        values[0] = value
        candidates = {**whole.tables["candidates"], name: values}
        return replace(whole, tables={**whole.tables, "candidates": candidates})

    for artifact, message in (
        (head(speed=1), "a.file: field 'speed' is unknown"),
        (
            head(configurations=whole.head["configurations"][1:]),
            "'configurations' has 45, table 'candidates' 46 rows, needs as many",
        ),
        (
            head(configurations=[{"leaf": "tree"}, *whole.head["configurations"][1:]]),
            r"field 'configurations\[0\]': leaf is 'tree', needs one of",
        ),
        (head(most_bytes_per_key="much"), "field 'most_bytes_per_key': 'much' is not a number"),
        (column("trial_per_s", -1), "column 'candidates.trial_per_s' has -1.0 in row 0, needs 0"),
        (column("predicted_per_s", float("nan")), "'candidates.predicted_per_s' has nan in row 0"),
    ):
        with pytest.raises(ArtifactError, match=message):
            IndexPlan.from_artifact(artifact, "a.file")
