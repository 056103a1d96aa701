"""A folder with a small model and its tokenizer."""

from pathlib import Path

import pytest

from tests.attention.folders import write_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))
