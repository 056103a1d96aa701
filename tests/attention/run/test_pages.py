"""Tensors on large pages: the bytes of their numbers, and Linux is asked for the pages."""

import copy
import io
from pathlib import Path

import pytest
import torch

from headrace.attention.run import pages

CPU = torch.device("cpu")
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def flags_of(address: int) -> set[str]:
    """Return the kernel's flags of the mapping that has an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and ":" not in first:
            begin, end = (int(part, 16) for part in first.split("-"))
            inside = begin <= address < end
        elif inside and first == "VmFlags:":
            return set(line.split()[1:])
    raise AssertionError(f"no mapping has {address:#x}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize("count", [3, 1_048_575, 3_000_001])
def test_storage_has_the_bytes_of_the_numbers(dtype: torch.dtype, count: int) -> None:
    tensor = pages.allocated((count, 2), dtype, CPU)
    assert tensor.shape == (count, 2)
    assert tensor.dtype == dtype
    assert tensor.untyped_storage().nbytes() == 2 * count * dtype.itemsize
    tensor.fill_(7)
    assert int(tensor[:, 1].double().sum()) == 7 * count


@pytest.mark.skipif(not SETTING.exists(), reason="the kernel has no large pages")
def test_large_tensors_alone_ask_for_large_pages() -> None:
    large = pages.allocated((5 << 20,), torch.int8, CPU)
    assert large.data_ptr() % (2 << 20) == 0
    assert "hg" in flags_of(large.data_ptr())
    assert "hg" in flags_of(large.data_ptr() + (4 << 20) - 1)
    assert "hg" not in flags_of(large.data_ptr() + (4 << 20)), "beyond the last whole page"


def test_entries_are_selected_and_tensors_copied_and_saved() -> None:
    tensor = pages.allocated((3, 1 << 20), torch.float32, CPU)
    tensor.copy_(torch.arange(3.0)[:, None].expand(-1, 1 << 20))
    chosen = pages.selected(tensor, torch.tensor([2, 0, 2, 1]))
    assert chosen[:, 5].tolist() == [2, 0, 2, 1]
    assert torch.equal(copy.deepcopy(tensor), tensor)
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    assert torch.equal(torch.load(file), tensor)


@pytest.mark.skipif(not SETTING.exists(), reason="the kernel has no large pages")
def test_blocks_of_whole_large_pages_share_their_mappings() -> None:
    """Each had two, of the 65,530 of a process: 64 GiB of blocks were all that it could have."""
    before = mappings()
    tensors = [pages.allocated((2 << 20,), torch.int8, CPU) for _ in range(64)]
    assert mappings() - before < len(tensors)


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())
