"""A job's description, as JSON carries it."""

import json

import pytest

from headrace.embeddings import EmbeddingError, EmbeddingTable, InitialValues
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.tables import table_groups

TABLES = (
    EmbeddingTable(name="user", rows=100, dim=8),
    EmbeddingTable(name="item", rows=0, dim=4, initial=InitialValues(scale=0.1)),
)
JOB = JobDescription(
    tables=TABLES,
    columns=((0, 2), (1,)),
    groups=table_groups(TABLES, state_per_row=1),
    slots=(10, 20),
    seed=3,
    data={"paths": ["a"]},
)


def test_a_description_is_read_as_it_was_written() -> None:
    assert JobDescription.from_fields(json.loads(json.dumps(JOB.to_fields()))) == JOB


def test_a_description_that_lacks_a_field_is_refused() -> None:
    fields = JOB.to_fields()
    del fields["tables"][0]["initial"]
    with pytest.raises(EmbeddingError, match="the description of a job cannot be read: 'initial'"):
        JobDescription.from_fields(fields)


def test_the_first_field_that_differs_is_named() -> None:
    assert JOB.difference(JOB) is None
    fields = JOB.to_fields() | {"slots": (10, 30)}
    assert JOB.difference(JobDescription.from_fields(fields)) == "slots"
