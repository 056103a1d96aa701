"""The check of a group's file descriptors before it is made."""

import errno
import os
import resource

import pytest

from headrace.executor.connect.descriptors import shortage


@pytest.mark.parametrize(("code", "short"), [(errno.EMFILE, True), (errno.ENOENT, False)])
def test_descriptors_that_cannot_be_listed_are_all_open_or_not_known(
    code: int, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a container has no /proc, no group could be made: all of them counted as open."""

    def listdir(_: str) -> list[str]:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "listdir", listdir)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert bool(shortage(2)) == short
