"""The largest cache of a host, from the kernel's files."""

from pathlib import Path

import pytest

from headrace.host_memory import last_level_cache_bytes


@pytest.mark.parametrize(
    ("sizes", "largest"),
    [
        (("32K", "1024K", "36608K"), 36608 << 10),
        (("48K", "2M", "105M"), 105 << 20),
        (("64K", ""), 64 << 10),
        ((), None),
    ],
)
def test_the_largest_cache_counts(
    tmp_path: Path, sizes: tuple[str, ...], largest: int | None
) -> None:
    for number, size in enumerate(sizes):
        folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{number}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(f"{size}\n")
    assert last_level_cache_bytes(tmp_path) == largest
