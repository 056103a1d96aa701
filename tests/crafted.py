"""The most expensive files of just under 1 MB, and a process that reads them under limits.

``python -m tests.crafted FOLDER`` writes each file to the folder, shows and verifies it, and
prints a line ``name: outcome`` for each: ``ok``, or the class of the error. The kernel ends it when
one file takes more than `CPU_S` of processor time, or MemoryError is raised beyond `MEMORY`.
"""

import contextlib
import io
import json
import resource
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from headrace.artifact import Artifact
from headrace.cli.artifacts import show_command, verify_command
from headrace.collectives.custom import demand_from_head
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.book import TABLES, stacked
from headrace.collectives.plan.generators.orbits.plan import SEND_COLUMNS
from headrace.collectives.plan.generators.taccl.sketch.parse import load_sketch
from headrace.collectives.program import (
    DEPENDENCY_COLUMNS,
    LANE_COLUMNS,
    STEP_COLUMNS,
    Program,
)
from headrace.errors import HeadraceError
from headrace.topology import Topology

CPU_S = 15
MEMORY = 1 << 30
"""Bytes of address space beyond what the modules take."""

Send = tuple[int, int, int, int]
"""(source, destination, slot, count)."""


def columns(rows: Iterable[tuple[int, ...]], dtypes: dict[str, np.dtype]) -> dict[str, np.ndarray]:
    table = np.array(list(rows), dtype=np.int64).reshape(-1, len(dtypes))
    return {
        n: np.ascontiguousarray(table[:, k], dtype=d) for k, (n, d) in enumerate(dtypes.items())
    }


def program(demand: Demand, sends: Iterable[Send] = (), scratch: int = 0) -> Program:
    """Return a program of sends that wait for nothing but their lanes."""
    lanes: dict[tuple[int, int, int, int], list[tuple[int, ...]]] = {}
    for message, (src, dst, slot, count) in enumerate(sends):
        lanes.setdefault((src, 0, dst, 0), []).append((0, slot, -1, count, message))
        lanes.setdefault((dst, 1, src, 0), []).append((1, slot, -1, count, message))
    keys = sorted(lanes)
    steps = [(lane, *row) for lane, key in enumerate(keys) for row in lanes[key]]
    return Program(
        demand=demand,
        scratch_slots=scratch,
        lanes=columns(keys, LANE_COLUMNS),
        steps=columns(steps, STEP_COLUMNS),
        dependencies=columns([], DEPENDENCY_COLUMNS),
    )


def network(
    ranks: int, links: Iterable[tuple[int, int]] = (), shared: Iterable[object] = ()
) -> dict[str, Any]:
    return {
        "name": "t",
        "hosts": ["h"],
        "rank_host": [0] * ranks,
        "links": [[a, b, 0, 1] for a, b in links],
        "shared": list(shared),
    }


def certificate(demand: Demand, digest: str) -> dict[str, Any]:
    bound = {
        "collective": demand.collective.value,
        "total_bytes": 1000,
        "total_us": 1.0,
        "bandwidth_us": 1.0,
        "latency_us": 0.0,
        "formula": "",
        "terms": [],
        "topology_digest": digest,
    }
    return {
        "maker": "m",
        "total_bytes": 1000,
        "topology_digest": digest,
        "model": "full",
        "predicted_us": 1.0,
        "bound": bound,
        "candidates": [],
        "why": "",
    }


def plan(of: Program, sends: Iterable[Send], **changes: Any) -> Artifact:
    part = of.to_artifact()
    graph = changes.pop("topology", network(of.demand.ranks, sorted({s[:2] for s in sends})))
    digest = Topology.from_head(graph).digest
    proof = {"program_digest": part.digest, "verifier_version": 2}
    head = {"topology": graph, "program": part.head, "proof": proof}
    return Artifact(
        kind="plan",
        schema=2,
        head={**certificate(of.demand, digest), **head, **changes},
        tables=part.tables,
    )


def broadcast(chunks: int = 1) -> tuple[Program, list[Send]]:
    sends = [(0, 1, 0, chunks)]
    return program(Demand(collective=Collective.BROADCAST, ranks=2, chunks=chunks), sends), sends


def book(programs: list[Program], entries: int) -> Artifact:
    """Return a book whose entry k is of program k, of the last one beyond."""
    parts = [p.to_artifact() for p in programs]
    graph = network(2, [(0, 1)])
    digest = Topology.from_head(graph).digest
    rows = [
        {
            "collective": "broadcast",
            "root": 0,
            "from_bytes": k,
            "to_bytes": k + 1 if k < entries - 1 else None,
            "program": min(k, len(programs) - 1),
            **certificate(programs[0].demand, digest),
        }
        for k in range(entries)
    ]
    heads = [
        {"program": p.head, "proof": {"program_digest": p.digest, "verifier_version": 2}}
        for p in parts
    ]
    return Artifact(
        kind="plan-book",
        schema=2,
        head={"topology": graph, "groups": None, "programs": heads, "entries": rows},
        tables={name: stacked([p.tables[name] for p in parts]) for name in TABLES},
    )


def topology(head: dict[str, Any]) -> Artifact:
    return Artifact(kind="topology", schema=1, head=head)


def profile(head: dict[str, Any], groups: list[list[int]], us: float = 1.0) -> Artifact:
    names = {
        "samples": ("chunks", "chunk_bytes", "us"),
        "fits": ("alpha_us", "beta_us_per_mb", "alpha_variance", "beta_variance"),
        "pairs": ("bytes_per_s", "median_rtt_us", "min_rtt_us", "kernel_rtt_us"),
    }
    ends = {end: np.zeros(1, np.int32) for end in ("src", "dst")}
    return Artifact(
        kind="profile",
        schema=2,
        head={"topology": head, "groups": groups, "measured_at": 1, "took_s": 1, "valid_for_s": 1},
        tables={t: {**ends, **{n: np.full(1, us) for n in of}} for t, of in names.items()},
    )


def uneven() -> Artifact:
    ranks = 600
    counts = [[100 * (d == (s + 1) % ranks) for d in range(ranks)] for s in range(ranks)]
    demand = Demand.all_to_all_v(counts)
    sends = [(s, (s + 1) % ranks, 0, 100) for s in range(ranks)]
    made = program(demand, sends)
    receives = made.steps["op"] == 1
    made.steps["slot"][receives] = demand.blocks
    return plan(made, sends)


def contributors() -> Artifact:
    rows = [[0, 0, 0, list(range(60_000))]]
    head = {"ranks": 1 << 16, "slots": 1, "chunks": 1 << 16, "before": rows, "after": rows}
    return program(demand_from_head(head)).to_artifact()


def sparse() -> Artifact:
    last = (1 << 24) - 1
    head = {"ranks": 400, "slots": last + 1, "before": [[0, 0, 0]], "after": [[1, last, 0]]}
    sends = [(0, 1, 0, 1)]
    made = program(demand_from_head(head), sends)
    made.steps["slot"][1] = last
    return plan(made, sends)


def dihedral(ranks: int) -> Artifact:
    """Return an orbit plan over the symmetries of a polygon, which do not commute."""
    sides = ranks // 2

    def times(a: int, b: int) -> int:
        sign = -1 if a % 2 else 1
        return (a // 2 + sign * (b // 2)) % sides * 2 + (a % 2 ^ b % 2)

    turns = [1, *(2 << k for k in range(ranks.bit_length() - 2))]
    images = np.array([[times(g, x) for x in range(ranks)] for g in turns], np.int32)
    sends = [(1 + i, 0, 0, 0, 0, i) for i in range(ranks - 1)]
    return Artifact(
        kind="orbit-plan",
        schema=1,
        head={"collective": "allgather", "ranks": ranks, "chunks": 1, "generators": len(turns)},
        tables={"generators": {"image": images.ravel()}, "sends": columns(sends, SEND_COLUMNS)},
    )


def xml(collective: str, gpus: int, chunks: int, steps: Callable[[int], str] | None = None) -> str:
    """Return MSCCL XML with a threadblock of these steps at every GPU, to and from the next one."""
    text = (
        f'<algo name="a" proto="LL" nchannels="1" nchunksperloop="{chunks}" ngpus="{gpus}" '
        f'coll="{collective}" inplace="1" outofplace="1" minBytes="0" maxBytes="0">'
    )
    for gpu in range(gpus):
        text += f'<gpu id="{gpu}" i_chunks="{chunks}" o_chunks="{chunks}" s_chunks="2">'
        if steps:
            peers = f'send="{(gpu + 1) % gpus}" recv="{(gpu - 1) % gpus}"'
            text += f'<tb id="0" {peers} chan="0">{steps(gpu)}</tb>'
        text += "</gpu>"
    return text + "</algo>"


def step(number: int, kind: str, count: int, on: int = -1, flag: int = 0) -> str:
    return (
        f'<step s="{number}" type="{kind}" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" '
        f'cnt="{count}" depid="{min(on, 0)}" deps="{on}" hasdep="{flag}"/>'
    )


def rounds(count: int, steps: int) -> Callable[[int], str]:
    """Return all sends before all receives: a cycle of waits, unless connections hold chunks."""
    half = steps // 2
    text = "".join(step(k, "s" if k < half else "r", count) for k in range(steps))
    return lambda _gpu: text


def waits(steps: int) -> Callable[[int], str]:
    """Return steps that all wait for the first, whose end only the last one publishes."""
    text = "".join(step(k, "cpy", 1, 0 if k else -1, int(k == steps - 1)) for k in range(steps))
    return lambda _gpu: text


def mscclpp(gpus: int, chunks: int, collective: str) -> str:
    of_gpu = {"input_chunks": chunks, "output_chunks": chunks, "scratch_chunks": 0}
    lists = ("threadblocks", "channels", "remote_buffers", "semaphores")
    return json.dumps(
        {
            "name": "a",
            "collective": collective,
            "protocol": "Simple",
            "inplace": False,
            "min_message_size": 0,
            "max_message_size": (1 << 64) - 1,
            "gpus": [{"id": k, **of_gpu, **{name: [] for name in lists}} for k in range(gpus)],
        }
    )


SHARED = [{"name": "", "links": [0], "beta_us_per_mb": 1}] * 20_000
_LAUGHS = "".join(f'<!ENTITY {chr(98 + k)} "{f"&{chr(97 + k)};" * 10}">' for k in range(10))

CASES: dict[str, tuple[Callable[[], Artifact | str], str]] = {
    # plans and programs
    "plan-wide": (lambda: plan(*broadcast(87_000)), "ok"),
    "plan-candidates": (lambda: plan(*broadcast(), candidates=[["", 0, None, ""]] * 66_000), "ok"),
    "plan-markup": (lambda: plan(*broadcast(), why="[b]" * 330_000), "ok"),
    "plan-uneven": (uneven, "ok"),
    "plan-sparse": (sparse, "ok"),
    "plan-shared": (
        lambda: plan(*broadcast(), topology=network(2, [(0, 1)], SHARED)),
        "ok",
    ),
    "program-contributors": (contributors, "ok"),
    "orbits": (lambda: dihedral(8192), "ok"),
    "orbits-more": (lambda: dihedral(11_584), "VerificationError"),
    # books
    "book-shared": (lambda: book([broadcast(1)[0]], 2_000), "ok"),
    "book-unused": (lambda: book([broadcast(k)[0] for k in range(1, 3_400)], 1), "ArtifactError"),
    "book-free": (
        lambda: book([broadcast(87_000 - k)[0] for k in range(900)], 900),
        "ArtifactError",
    ),
    # topologies and profiles
    "topology-shared": (lambda: topology(network(3, [(0, 1)], SHARED)), "ok"),
    "topology-ranks": (lambda: topology(network(490_000)), "ok"),
    "topology-integers": (
        lambda: topology({**network(2), "rank_host": [10**4000] * 200}),
        "ArtifactError",
    ),
    "topology-text": (lambda: topology({**network(2), "name": "[/x]"}), "ok"),
    "profile-groups": (lambda: profile(network(90_000), [[k] for k in range(90_000)]), "ok"),
    "profile-costs": (lambda: profile(network(2), [[0, 1]], 1e300), "ArtifactError"),
    # sketches
    "sketch-keys": (
        lambda: "{" + ",".join(f'"{k}":0' for k in range(80_000)) + ',"79999":0}',
        "SketchError",
    ),
    "sketch-symmetries": (
        lambda: json.dumps(
            {
                "intranode_sketch": {"strategy": "none"},
                "symmetries": [{"automorphism": [0]}] * 40_000,
            }
        ),
        "SketchError",
    ),
    # files of other tools
    "xml-entities": (
        lambda: f'<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">{_LAUGHS}]><algo>&k;</algo>',
        "InputError",
    ),
    "xml-values": (lambda: xml("allgather", 2_000, 2_000), "VerificationError"),
    "xml-chunks": (lambda: xml("allreduce", 2, 1_900_000), "VerificationError"),
    "xml-counts": (
        lambda: xml("broadcast", 2, 1_000_000, rounds(1_000_000, 60)),
        "VerificationError",
    ),
    "xml-buffered": (lambda: xml("broadcast", 2, 14, rounds(14, 4_000)), "VerificationError"),
    "xml-waits": (lambda: xml("broadcast", 2, 1, waits(4_000)), "VerificationError"),
    "json-values": (lambda: mscclpp(2_000, 2_000, "alltoall"), "VerificationError"),
    "json-integers": (lambda: mscclpp(2, 10**4000, "allreduce"), "InputError"),
    "json-nested": (lambda: '{"a":' * 150_000, "InputError"),
}
"""By name, what makes the file and what reading it gives."""


def outcome(path: Path) -> str:
    """Return ``ok`` or the class of the error that reading `path` in every way gives."""
    try:
        if path.name.startswith("sketch"):
            load_sketch(path)
        elif path.name.startswith(("topology", "profile")):
            show_command(path)
        else:
            if path.name.startswith("plan"):
                show_command(path)
            verify_command(path)
    except HeadraceError as error:
        return type(error).__name__
    return "ok"


def limited(name: str, folder: Path) -> str:
    path, (make, _) = folder / name, CASES[name]
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
    with contextlib.suppress(ValueError):  # the digest of what cannot be an artifact
        made = make()
        path.write_bytes(made.encode() if isinstance(made, str) else made.to_bytes())
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, hard))
    with contextlib.redirect_stdout(io.StringIO()):
        return outcome(path)


def main() -> None:
    """Read all files, each under its limits."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, resource.RLIM_INFINITY))
    for name in CASES:
        print(f"{name}: {limited(name, Path(sys.argv[1]))}", flush=True)


if __name__ == "__main__":
    main()
