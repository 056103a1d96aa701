"""Fixtures of the tests of fitted models."""

from collections.abc import Iterator

import pytest

from headrace.executor import Executor
from tests.conformance.groups import group


@pytest.fixture
def executor() -> Iterator[Executor]:
    with group(1) as (executor,):
        yield executor
