"""Fixtures of all tests of memory."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test an empty cache folder of its own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HEADRACE_CACHE", str(folder))
    return folder
