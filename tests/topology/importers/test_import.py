"""All importers: a topology or a TopologyError, soon and in little memory, for any file."""

import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import TopologyError
from headrace.topology import Topology
from headrace.topology.importers import FORMATS, format_of, import_topology
from headrace.topology.importers.reading import MAX_BYTES
from tests.waiting import no_hang

SAMPLES = sorted((Path(__file__).parent.parent / "samples").iterdir())
KINDS = {
    ".json": "taccl",
    ".edges": "edges",
    ".csv": "edges",
    ".txt": "nvidia-smi",
    ".xml": "nccl-xml",
}
CONTENTS = [sample.read_bytes() for sample in SAMPLES]
# Parts that mean something in one of the formats, for mutations to put in.
TOKENS = [
    *(
        b"0",
        b"-1",
        b"1e999",
        b"NaN",
        b"99999999999999999999",
        b"X",
        b"NV18",
        b"NV0",
        b"SYS",
        b"PIX",
    ),
    *(
        b"GPU0",
        b"GPU7",
        b"NIC0",
        b"\n",
        b"\t",
        b",",
        b"[",
        b"]",
        b"{",
        b"}",
        b'"',
        b"null",
        b"true",
    ),
    *(
        b"<pci busid='1'>",
        b"</pci>",
        b"<cpu>",
        b"<nic>",
        b"<net/>",
        b"<gpu dev='0'/>",
        b"&lt;",
        b"\x00",
    ),
    *(
        b"\xff",
        b"<!DOCTYPE a>",
        b"GB/s",
        b"src",
        b"#",
        b"links",
        b"1000000000",
        b'count="900"',
        b"\x1b[4m",
    ),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_every_sample_is_recognised_and_read(sample: Path) -> None:
    kind = KINDS[sample.suffix]
    assert format_of(sample.read_bytes()) == kind
    made = import_topology(sample)
    assert import_topology(sample, kind) == made  # type: ignore[arg-type]
    assert Topology.from_head(made.to_head()) == made
    assert import_topology(sample, nodes=2).hosts != ()


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="missing: cannot be read: No such file"):
        import_topology(tmp_path / "missing")
    with pytest.raises(TopologyError, match="cannot be read: Is a directory"):
        import_topology(tmp_path)
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(TopologyError, match=f"has more than {MAX_BYTES} bytes"):
        import_topology(large)
    (tmp_path / "empty").touch()
    with pytest.raises(TopologyError, match="empty: has no edges"):
        import_topology(tmp_path / "empty")
    with pytest.raises(TopologyError, match="file_format is 'yaml', needs 'auto' or one of taccl,"):
        import_topology(tmp_path / "empty", "yaml")  # type: ignore[arg-type]


def read_or_refuse(content: bytes, kind: str, folder: Path, nodes: int | None) -> None:
    path = folder / "mutant"
    path.write_bytes(content)
    try:
        made = import_topology(path, kind, nodes=nodes)  # type: ignore[arg-type]
    except TopologyError as error:
        assert str(error).startswith(str(path))
        assert len(str(error)) < 600
    else:
        assert Topology.from_head(made.to_head()) == made


def mutated(content: bytes, seed: int, count: int) -> bytes:
    chance = random.Random(seed)
    made = bytearray(content)
    for _ in range(count):
        at = chance.randrange(len(made) + 1)
        end = min(len(made), at + chance.choice((0, 0, 1, 1, 2, 8, 64)))
        what = chance.randrange(5)
        if what == 0:
            made[at:end] = b""
        elif what == 1:
            made[at:end] = chance.choice(TOKENS)
        elif what == 2:
            made[at:at] = made[at:end] * chance.randrange(1, 4)
        elif what == 3:
            made[at:end] = bytes(chance.randrange(256) for _ in range(end - at))
        else:
            digits = [i for i, byte in enumerate(made) if 48 <= byte < 58]
            if digits:
                made[chance.choice(digits)] = chance.randrange(48, 58)
    return bytes(made)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.sampled_from(CONTENTS),
    seed=st.integers(0, 2**32),
    count=st.integers(0, 12),
    kind=st.sampled_from(("auto", *FORMATS)),
    nodes=st.sampled_from((None, None, 1, 2, 3)),
)
def test_mutated_files_are_read_or_refused(
    content: bytes, seed: int, count: int, kind: str, nodes: int | None, tmp_path: Path
) -> None:
    # Mostly the right parser: other formats are refused by their first line.
    read_or_refuse(mutated(content, seed, count), "auto" if seed % 4 else kind, tmp_path, nodes)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=300) | st.text(max_size=300).map(str.encode),
    kind=st.sampled_from(FORMATS),
)
def test_garbage_is_refused(content: bytes, kind: str, tmp_path: Path) -> None:
    read_or_refuse(content, kind, tmp_path, None)


LARGE = {
    "numbers": b"1 " * 400_000,
    "one line": b"0" * 800_000,
    "edges": b"0 1 1 1\n" * 100_000,
    "devices": b"GPU0 "
    + b" ".join(b"GPU%d" % i for i in range(1, 100_000))
    + b"\n"
    + b"GPU0 X\n" * 20_000,
    "rows": b"GPU0 GPU1\n" + b"GPU5 X X\n" * 90_000,
    "escapes": b"\x1b[" * 400_000,
    "brackets": b"{" * 400_000,
    "nested json": b'{"links":' * 90_000,
    "long integer": b'{"name": "a", "gpus_per_node": ' + b"9" * 400_000 + b"}",
    "deep xml": b"<a>" * 200_000,
    "wide xml": b"<system><cpu>" + b"<gpu/>" * 99_000 + b"</cpu></system>",
    "many nets": b"<system><cpu>"
    + b"".join(b"<pci busid='%d'><gpu dev='%d' sm='70'/></pci>" % (i, i) for i in range(256))
    + b"<net name='a' dev='0'/>" * 30_000
    + b"</cpu></system>",
    "attributes": b"<system " + b" ".join(b"a%d='1'" % i for i in range(60_000)) + b"/>",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", LARGE)
def test_large_garbage_takes_neither_long_nor_much_memory(
    name: str, kind: str, tmp_path: Path
) -> None:
    tracemalloc.start()
    try:
        with no_hang():
            read_or_refuse(LARGE[name], kind, tmp_path, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200 * 2**20
