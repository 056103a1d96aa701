"""Readers take anything: an answer or one of headrace's errors, in bounded time and memory."""

import json
import random
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import MscclError, MscclppError
from headrace.collectives.export import msccl_xml, mscclpp_json, mscclpp_read
from headrace.collectives.plan.generators.templates.direct import direct
from headrace.collectives.plan.generators.templates.ring import ring
from headrace.collectives.plan.ir.lower import lower
from tests.waiting import no_hang

XML = [
    msccl_xml.export(lower(ring(Demand(collective=Collective.ALLREDUCE, ranks=3, chunks=3)))),
    msccl_xml.export(lower(direct(Demand(collective=Collective.ALL_TO_ALL, ranks=3)))),
]
JSON = [
    mscclpp_json.export(lower(ring(Demand(collective=Collective.ALLREDUCE, ranks=3, chunks=3)))),
    mscclpp_json.export(lower(direct(Demand(collective=Collective.GATHER, ranks=3)))),
]
NUMBERS = ["-1", "0", "1", "2", "3", "71", "72", "999999999", str(1 << 62), "-5", "", "x"]
fuzz = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def xml(text: str | bytes) -> None:
    try:
        verdict = msccl_xml.verify_text(text)
    except MscclError as error:
        assert str(error)
    else:
        assert all(str(finding) for finding in verdict.findings)


def plan(text: str | bytes) -> None:
    try:
        mscclpp_read.verify_text(text)
    except MscclppError as error:
        assert str(error)


@fuzz
@given(st.binary(max_size=400))
def test_bytes(data: bytes) -> None:
    xml(data)
    xml(b"<algo " + data)
    plan(data)


@fuzz
@given(st.text(max_size=200))
def test_text(text: str) -> None:
    xml(text)
    xml(XML[0].replace("Simple", text))
    plan(text)


@fuzz
@given(st.integers(0, 1 << 32), st.sampled_from(XML))
def test_changed_attributes(seed: int, text: str) -> None:
    rng = random.Random(seed)
    parts = text.split('"')
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(1, len(parts), 2)
        parts[at] = rng.choice([*NUMBERS, *parts[1::2]])
    xml('"'.join(parts))


@pytest.mark.slow
def test_every_attribute_with_every_number() -> None:
    parts = XML[1].split('"')
    for at in range(1, len(parts), 2):
        for number in NUMBERS:
            xml('"'.join([*parts[:at], number, *parts[at + 1 :]]))


@fuzz
@given(st.integers(0, 1 << 32), st.sampled_from(XML))
def test_changed_lines(seed: int, text: str) -> None:
    rng = random.Random(seed)
    lines = text.splitlines()
    for _ in range(rng.randrange(1, 4)):
        a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
        change = rng.randrange(3)
        if change == 0:
            lines[a], lines[b] = lines[b], lines[a]
        elif change == 1:
            lines.insert(a, lines[b])
        else:
            del lines[a]
            lines = lines or [""]
    xml("\n".join(lines))


JUNK = st.sampled_from([None, -1, 0, 7, 1 << 70, 1.5, "i", "wait", [], {}, [1], {"a": 1}, True])


@fuzz
@given(st.integers(0, 1 << 32), st.sampled_from(JSON), JUNK)
def test_changed_plans(seed: int, text: str, junk: object) -> None:
    rng = random.Random(seed)
    value = json.loads(text)
    for _ in range(rng.randrange(1, 3)):
        node: object = value
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = rng.choice(keys)
            child = node[key]
            if isinstance(child, dict | list) and child and rng.random() < 0.85:
                node = child
                continue
            if rng.random() < 0.3:
                del node[key]
            else:
                node[key] = json.loads(json.dumps(junk))
            break
    plan(json.dumps(value))


@pytest.mark.parametrize(
    "text",
    [
        "<algo>" + "<gpu>" * 200_000,
        "<algo" + ' a="b"' * 100_000 + "/>",
        "<algo " + "a" * 1_000_000 + '="1"/>',
        XML[0].replace('nchunksperloop="3"', 'nchunksperloop="3000000000000"'),
        XML[0].replace('s_chunks="0"', 's_chunks="9000000000000000000"'),
        XML[0].replace('srcoff="0"', 'srcoff="9000000000000000000"'),
        '<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;&b;&b;">]>' + XML[0],
        '<algo name="&lol;"/>',
    ],
    ids=lambda text: text[:24],
)
def test_hostile_xml_takes_neither_time_nor_memory(text: str) -> None:
    tracemalloc.start()
    with no_hang():
        xml(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200e6


@pytest.mark.parametrize("text", ["[" * 100_000, '{"gpus":' * 50_000, "{}", "null", '{"gpus":[1]}'])
def test_hostile_json_is_refused(text: str) -> None:
    with pytest.raises(MscclppError):
        mscclpp_read.verify_text(text)


def test_files_that_cannot_be_read_are_refused(tmp_path) -> None:
    with pytest.raises(MscclError, match="cannot be read"):
        msccl_xml.verify_file(tmp_path / "none.xml")
    with pytest.raises(MscclppError, match="cannot be read"):
        mscclpp_read.verify_file(tmp_path)
