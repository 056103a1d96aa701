"""XML in the style of other tools: proven, or refuted for the right reason."""

import pytest

from headrace.collectives.errors import ProgramError
from headrace.collectives.export.msccl_xml import read, verify_text
from headrace.collectives.plan.verify import verify
from tests.collectives.export.machine import Machine
from tests.collectives.export.recover import recovered


def step(
    s: int, kind: str, src: str, dst: str, cnt: int = 1, dep: str = "-1:-1", has: int = 0
) -> str:
    (sb, so), (db, do), (tb, k) = (x.split(":") for x in (src, dst, dep))
    return (
        f'<step s="{s}" type="{kind}" srcbuf="{sb}" srcoff="{so}" dstbuf="{db}" dstoff="{do}" '
        f'cnt="{cnt}" depid="{tb}" deps="{k}" hasdep="{has}"/>'
    )


def algo(
    coll: str, n: int, loop: int, body: list[str], modes: tuple[int, int], channels: int = 1
) -> str:
    """Attributes in another order than headrace writes them, as tools differ in that."""
    return (
        f'<algo ngpus="{n}" coll="{coll}" nchunksperloop="{loop}" nchannels="{channels}" '
        f'proto="Simple" inplace="{modes[0]}" outofplace="{modes[1]}" minBytes="0" maxBytes="0" '
        f'name="by_hand">\n' + "\n".join(body) + "\n</algo>\n"
    )


def ring_allgather(n: int) -> str:
    """One threadblock a GPU that sends before it receives; a copy to the output beside it."""
    body: list[str] = []
    for r in range(n):
        steps = [step(0, "s", "i:0", f"o:{r}")]
        for k in range(1, n - 1):
            at = f"o:{(r - k) % n}"
            steps.append(step(k, "rcs", at, at))
        last = f"o:{(r + 1) % n}"
        steps.append(step(n - 1, "r", last, last))
        copy = step(0, "cpy", "i:0", f"o:{r}")
        body += [
            f'<gpu id="{r}" i_chunks="1" o_chunks="{n}" s_chunks="0">',
            f'<tb id="0" send="{(r + 1) % n}" recv="{(r - 1) % n}" chan="0">{"".join(steps)}</tb>',
            f'<tb id="1" send="-1" recv="-1" chan="0">{copy}</tb>',
            "</gpu>",
        ]
    return algo("allgather", n, n, body, (1, 1))


def allpairs_allreduce(n: int) -> str:
    """Every rank sends chunk p to p, reduces what arrives through scratch, and sends it to all."""
    body: list[str] = []
    for r in range(n):
        body.append(f'<gpu id="{r}" i_chunks="{n}" o_chunks="0" s_chunks="{n}">')
        others = [p for p in range(n) if p != r]
        for t, p in enumerate(others):
            steps = [step(0, "s", f"i:{p}", f"s:{r}"), step(1, "r", f"s:{p}", f"s:{p}", has=1)]
            # every threadblock waits for the local one to have added everything up
            steps.append(step(2, "s", f"i:{r}", f"i:{r}", dep=f"{n - 1}:{2 * (n - 1) - 1}"))
            steps.append(step(3, "r", f"i:{p}", f"i:{p}"))
            body.append(f'<tb id="{t}" send="{p}" recv="{p}" chan="0">{"".join(steps)}</tb>')
        steps = []
        for t, p in enumerate(others):
            k = len(steps)
            steps.append(step(k, "nop", "i:-1", "o:-1", 0, dep=f"{t}:1"))
            steps.append(step(k + 1, "re", f"s:{p}", f"i:{r}", dep=f"{t}:1", has=1))
        body.append(f'<tb id="{n - 1}" send="-1" recv="-1" chan="0">{"".join(steps)}</tb>')
        body.append("</gpu>")
    return algo("allreduce", n, n, body, (1, 0))


@pytest.mark.parametrize("n", [3, 4, 6])
def test_ring_allgather_runs_with_what_connections_hold(n: int) -> None:
    text = ring_allgather(n)
    verdict = verify_text(text)
    assert verdict.proven
    (finding,) = {f.rule: f for f in verdict.findings}.values()
    assert finding.rule == "buffering"
    assert "hold at least 2 chunks" in finding.message
    assert "gpu 0, threadblock 0, step 0 (s)" in finding.message
    assert Machine(text).misbehaves(10) == ""
    assert "stuck" in Machine(text).misbehaves(1, depth=1)
    algorithm, _ = read(text)
    with pytest.raises(ProgramError, match="nothing buffered"):
        recovered(algorithm)


def test_a_ring_of_long_steps_that_relies_on_buffers_is_a_deadlock() -> None:
    """Three chunks do not fit into a connection: at large sizes every GPU waits in its send."""
    text = (
        ring_allgather(3)
        .replace('cnt="1"', 'cnt="3"')
        .replace('nchunksperloop="3"', 'nchunksperloop="9"')
    )
    for k in (2, 1):
        text = text.replace(f'off="{k}"', f'off="{3 * k}"')
    text = text.replace('o_chunks="3"', 'o_chunks="9"').replace('i_chunks="1"', 'i_chunks="3"')
    verdict = verify_text(text)
    assert not verdict.proven
    assert verdict.findings[0].rule == "deadlock"


def both_send_first(chunks: int, protocol: str) -> str:
    """An allgather of two GPUs, each with one threadblock that sends all, then receives all."""
    body: list[str] = []
    for r in range(2):
        here, there = f"o:{r * chunks}", f"o:{(1 - r) * chunks}"
        steps = step(0, "s", "i:0", here, chunks) + step(1, "r", there, there, chunks)
        body += [
            f'<gpu id="{r}" i_chunks="{chunks}" o_chunks="{2 * chunks}" s_chunks="0">',
            f'<tb id="0" send="{1 - r}" recv="{1 - r}" chan="0">{steps}</tb>',
            f'<tb id="1" send="-1" recv="-1" chan="0">{step(0, "cpy", "i:0", here, chunks)}</tb>',
            "</gpu>",
        ]
    text = algo("allgather", 2, 2 * chunks, body, (0, 1))
    return text.replace('proto="Simple"', f'proto="{protocol}"')


@pytest.mark.parametrize(("protocol", "held"), [("Simple", 2), ("LL", 8), ("LL128", 8)])
def test_a_connection_holds_as_many_chunks_as_its_protocol_has_slots_for(
    protocol: str, held: int
) -> None:
    """Two chunks were assumed for all protocols: right files for LL and LL128 were refused."""
    for chunks in range(1, held + 1):
        verdict = verify_text(both_send_first(chunks, protocol))
        assert verdict.proven
        assert f"hold at least {held} chunks" in verdict.findings[0].message
    verdict = verify_text(both_send_first(held + 1, protocol))
    assert verdict.findings[0].rule == "deadlock"
    assert not verdict.proven


@pytest.mark.parametrize(
    ("protocol", "chunks", "most_bytes"),
    [("Simple", 8, 4 << 20), ("Simple", 16, 1 << 21), ("LL", 16, 1 << 15), ("LL128", 16, 65536)],
)
def test_a_file_is_judged_up_to_its_largest_size(
    protocol: str, chunks: int, most_bytes: int
) -> None:
    """Files that RCCL ships, in which two GPUs both send 8 or 16 chunks first, were refuted.

    Up to their maxBytes, and with the default buffers, a step is one call: nothing blocks.
    """
    text = both_send_first(chunks, protocol)
    assert not verify_text(text).proven
    limited = text.replace('maxBytes="0"', f'maxBytes="{most_bytes}"')
    verdict = verify_text(limited)
    assert verdict.proven, verdict.findings
    (finding,) = verdict.findings
    assert finding.rule == "buffering"
    assert f"up to its maxBytes of {most_bytes} it runs only because" in finding.message
    assert "with smaller buffers, or beyond these sizes, it may block" in finding.message
    beyond = text.replace('maxBytes="0"', f'maxBytes="{most_bytes * 64}"')
    assert verify_text(beyond).findings[0].rule == "deadlock"


def around(*, copied: bool = True) -> str:
    """A broadcast whose root writes s[0], sends it around both others, and writes it again.

    Nothing at the root orders the two writes but the message that comes back in between; without
    `copied` the second write does not wait for it.
    """
    first, again = step(0, "cpy", "i:0", "s:0", has=1), step(0, "cpy", "i:0", "s:0", has=0)
    back = step(0, "r", "s:1", "s:1", has=1)
    if copied:
        again = step(0, "cpy", "i:0", "s:0", dep="2:0")
    out = step(0, "s", "s:0", "o:0", dep="0:0")
    own = step(0, "cpy", "i:0", "o:0")
    blocks = [(-1, -1, first), (1, -1, out), (-1, 2, back), (-1, -1, again), (-1, -1, own)]
    root = "".join(
        f'<tb id="{number}" send="{send}" recv="{recv}" chan="0">{steps}</tb>'
        for number, (send, recv, steps) in enumerate(blocks)
    )
    body = [f'<gpu id="0" i_chunks="1" o_chunks="1" s_chunks="2">{root}</gpu>']
    for rank, (send, recv) in ((1, (2, 0)), (2, (0, 1))):
        forward = step(0, "rcs", "o:0", "o:0")
        body.append(
            f'<gpu id="{rank}" i_chunks="0" o_chunks="1" s_chunks="0">'
            f'<tb id="0" send="{send}" recv="{recv}" chan="0">{forward}</tb></gpu>'
        )
    return algo("broadcast", 3, 1, body, (0, 1))


def test_messages_by_way_of_other_gpus_order_steps() -> None:
    """Orders at the step's own GPU alone counted: right files were refuted for data races."""
    verdict = verify_text(around())
    assert verdict.proven, verdict.findings
    verdict = verify_text(around(copied=False))
    assert verdict.findings[0].rule == "race"
    assert not verdict.proven


@pytest.mark.parametrize("n", [2, 3, 4])
def test_allpairs_allreduce(n: int) -> None:
    text = allpairs_allreduce(n)
    verdict = verify_text(text)
    assert verdict.proven, verdict.findings
    assert Machine(text).misbehaves(20) == ""


def test_allpairs_without_its_waits_is_a_race() -> None:
    text = allpairs_allreduce(3)
    wait = f'depid="2" deps="{2 * 2 - 1}"'
    assert wait in text
    verdict = verify_text(text.replace(wait, 'depid="-1" deps="-1"'))
    assert verdict.findings[0].rule == "race"
    assert Machine(text.replace(wait, 'depid="-1" deps="-1"')).misbehaves(40)


def test_a_nop_without_dependency_is_refused() -> None:
    text = allpairs_allreduce(2).replace(
        step(0, "nop", "i:-1", "o:-1", 0, dep="0:1"), step(0, "nop", "i:-1", "o:-1", 0)
    )
    verdict = verify_text(text)
    assert (verdict.findings[0].rule, verdict.findings[0].threadblock) == ("format", 1)
    assert "nop" in verdict.findings[0].message


def test_results_that_differ_in_the_last_bit_are_a_warning() -> None:
    """Each GPU adds up in its own order: a correct sum, but not the same rounding everywhere."""
    n, body = 3, []
    for r in range(n):
        body.append(f'<gpu id="{r}" i_chunks="1" o_chunks="1" s_chunks="{n}">')
        others = [(r + k) % n for k in range(1, n)]
        for t, p in enumerate(others):
            body.append(
                f'<tb id="{t}" send="{p}" recv="-1" chan="0">{step(0, "s", "i:0", "s:0")}</tb>'
            )
        for t, p in enumerate(others, start=n - 1):
            receive = step(0, "r", f"s:{p}", f"s:{p}", has=1)
            body.append(f'<tb id="{t}" send="-1" recv="{p}" chan="0">{receive}</tb>')
        steps = [step(0, "cpy", "i:0", "o:0")]
        for t, p in enumerate(others, start=n - 1):
            steps.append(step(len(steps), "re", f"s:{p}", "o:0", dep=f"{t}:0"))
        body.append(
            f'<tb id="{2 * n - 2}" send="-1" recv="-1" chan="0">{"".join(steps)}</tb></gpu>'
        )
    verdict = verify_text(algo("allreduce", n, 1, body, (0, 1)))
    assert verdict.proven
    assert [f.rule for f in verdict.findings] == ["agreement"]


def test_a_strict_algorithm_of_another_tool_becomes_a_program() -> None:
    n, body = 3, []
    for r in range(n):
        steps = []
        if r:
            steps.append(step(0, "rcs" if r < n - 1 else "r", "o:0", "o:0"))
        else:
            steps += [step(0, "cpy", "i:0", "o:0"), step(1, "s", "o:0", "o:0")]
        send, recv = r + 1 if r < n - 1 else -1, r - 1
        body.append(
            f'<gpu id="{r}" i_chunks="1" o_chunks="1" s_chunks="0">'
            f'<tb id="0" send="{send}" recv="{recv}" chan="0">{"".join(steps)}</tb></gpu>'
        )
    text = algo("broadcast", n, 1, body, (1, 1))
    assert verify_text(text).findings == ()
    verify(recovered(read(text)[0]))


def test_a_file_of_an_earlier_tool_is_proven() -> None:
    """Its algo has no outofplace, minBytes and maxBytes, which microsoft/msccl does without."""
    text = allpairs_allreduce(3)
    for attribute in ('outofplace="0" ', 'minBytes="0" ', 'maxBytes="0" '):
        assert attribute in text
        text = text.replace(attribute, "")
    verdict = verify_text(text)
    assert verdict.proven
    missing = [f.message for f in verdict.findings if "is missing" in f.message]
    assert len(missing) == 3
    algorithm, _ = read(text)
    assert (algorithm.in_place, algorithm.out_of_place) == (True, False)


@pytest.mark.parametrize(
    ("line", "old", "new"),
    [
        (1, "<algo", '<?xml version="1.0" ?>\n<algo'),
        (1, "<algo", "\ufeff<algo"),
        (3, "<tb", "\t<tb"),
        (3, ' send="', '\n  send="'),
        (3, 'chan="0"', "chan='0'"),
        (6, "</gpu>", "</gpu >"),
    ],
)
def test_xml_that_no_runtime_reads_is_named(line: int, old: str, new: str) -> None:
    """Their parsers know little of XML; a file that was indented by another tool was proven."""
    text = allpairs_allreduce(3)
    assert verify_text(text).proven
    verdict = verify_text(text.replace(old, new, 1))
    (finding,) = [f for f in verdict.findings if f.fatal]
    assert finding.rule == "limit"
    assert f"line {line}: no runtime reads this" in finding.message


def test_xml_with_comments_and_spaces_is_read() -> None:
    text = allpairs_allreduce(3).replace('" ', '"   ').replace("/>", " />").replace("\n", "\r\n")
    text = text.replace("<gpu", "<!-- one\n of\t'many' -->\n  <gpu")
    assert verify_text(text).proven
