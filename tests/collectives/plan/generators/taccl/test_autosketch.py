"""Automatic sketches: what is proposed, that it is tried within bounds, and what comes of it."""

from dataclasses import replace
from itertools import pairwise

import pytest

from headrace.collectives.demand import STANDARD, Collective
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.engine import SearchProblem, SearchResult, SearchSettings
from headrace.collectives.plan.generators.taccl import autosketch as module
from headrace.collectives.plan.generators.taccl.autosketch import AutoSketch, autosketch
from headrace.collectives.plan.generators.taccl.sketch.enumerate import (
    connections,
    policies,
    symmetries,
)
from headrace.collectives.plan.generators.taccl.sketch.logical import apply_sketch
from headrace.collectives.plan.generators.taccl.sketch.named import NAMED
from headrace.collectives.plan.generators.taccl.sketch.parse import parse_sketch
from headrace.collectives.plan.generators.taccl.sketch.sketch import (
    Internode,
    Intranode,
    RelayMap,
    Sketch,
    Strategy,
    Symmetry,
)
from headrace.collectives.plan.generators.taccl.sketch.write import sketch_to_json
from headrace.collectives.plan.generators.taccl.synthesize import guided_synthesis
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.portfolio import predict_us
from headrace.collectives.plan.request import Effort, Method, Request
from headrace.collectives.plan.verify import verify
from headrace.collectives.run.synthesis import NativeSearch
from headrace.errors import TopologyError
from headrace.topology import Topology
from headrace.topology.presets import dgx1, dgx2, fat_tree, mesh, ndv2, ring, torus, uniform
from tests.waiting import ENDLESS_S

MB = 1_000_000


@pytest.fixture(autouse=True)
def counted_budgets_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lift the limits of elapsed time: a busy machine tries fewer sketches until then."""
    unlimited = {name: replace(plan, limit_s=ENDLESS_S) for name, plan in module._PLANS.items()}
    monkeypatch.setattr(module, "_PLANS", unlimited)


def request(
    topology: Topology,
    collective: Collective = Collective.ALLGATHER,
    *,
    effort: Effort = "quick",
    seed: int = 0,
    chunks: int | None = None,
    root: int = 0,
) -> Request:
    method = Method(model=FULL, engine=NativeSearch(), effort=effort, seed=seed, chunks=chunks)
    return Request(topology, collective, root=root, method=method)


def conn(sketch: Sketch) -> object:
    assert sketch.internode is not None
    return sketch.internode.connections


class TestEnumeration:
    def test_one_host_has_no_connections_to_choose(self) -> None:
        for topology in (dgx2(nodes=1), mesh((2, 3)), ring(5), uniform(4)):
            assert [s.name for s in connections(topology)] == ["all"]

    def test_a_nic_for_two_gpus_gets_a_sender_and_a_receiver(self) -> None:
        """The dissertation's dgx2-sk-1, found: odd GPUs send, even ones receive."""
        ways = {s.name: s for s in connections(dgx2(nodes=2))}
        named = NAMED["dgx2-sk-1"](2)
        assert conn(ways["NIC pairs"]) == conn(named)
        assert ways["NIC pairs"].intranode.switches == named.intranode.switches
        assert conn(ways["direct-map"]) == "direct-map"
        assert conn(ways["one GPU a NIC"]) == {gpu: (gpu,) for gpu in range(0, 16, 2)}

    def test_one_nic_a_node_gets_one_pair_of_every_kind(self) -> None:
        """By an NVLink of double or single bandwidth, or none between the two."""
        ways = {s.name: s for s in connections(ndv2(nodes=2))}
        assert {len(conn(s)) for name, s in ways.items() if name.startswith("NIC pairs")} == {1}  # type: ignore[arg-type]
        assert {"NIC pairs", "NIC pairs 2", "NIC pairs 3"} <= set(ways)
        assert "single relay" not in ways  # that is what a pair is here

    def test_receivers_per_sender(self) -> None:
        ways = {s.name: s for s in connections(dgx1(nodes=2))}
        for count in (2, 4):
            rows = conn(ways[f"{count} receivers"])
            assert isinstance(rows, dict)
            assert {len(row) for row in rows.values()} == {count}
            assert sorted(rows) == list(range(8))

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("topology", [ndv2(nodes=2), dgx1(nodes=2), dgx2(nodes=3)])
    def test_every_proposal_fits_its_topology_and_survives_a_file(self, topology: Topology) -> None:
        ways = connections(topology)
        assert len({s.name for s in ways}) == len(ways) >= 6
        for way in ways:
            more = symmetries(way, topology)
            assert way.nodes == 1 or all(s.symmetries[-1].group == topology.ranks for s in more)
            for sketch in (way, *more, *policies(way, MB)):
                apply_sketch(sketch, topology)  # raises for what is no automorphism
                assert parse_sketch(sketch_to_json(sketch)) == sketch

    def test_policies_are_those_that_differ_from_auto(self) -> None:
        first = connections(dgx2(nodes=2))[0]
        names = [s.name for s in policies(first, 2 * MB)]
        assert names == ["all, uc-max", "all, free"]
        assert [s.name for s in policies(first, 1000)] == ["all, uc-min", "all, free"]
        assert policies(connections(ndv2(nodes=2))[0], MB) == []


class TestWriting:
    @pytest.mark.parametrize("name", NAMED)
    def test_named_sketches_survive_a_file(self, name: str) -> None:
        sketch = NAMED[name](2)
        assert parse_sketch(sketch_to_json(sketch)) == sketch

    def test_every_field_survives_a_file(self) -> None:
        internode = Internode(
            connections={0: (1, 2)},
            beta_split={0: 1.5},
            relay=RelayMap(group=2, place=1),
            enforce_ordering=True,
        )
        sketch = Sketch(
            name='all "of" it',
            nodes=2,
            intranode=Intranode(strategy=Strategy.MINMAX),
            internode=internode,
            symmetries=(
                Symmetry(offset=2, group=4),
                Symmetry(automorphism=(1, 0, 3, 2), partition=((0, 1), (2, 3))),
                Symmetry(automorphism=(2, 3, 0, 1)),
            ),
            chunkup=3,
            input_bytes=12345,
        )
        assert parse_sketch(sketch_to_json(sketch)) == sketch
        table = replace(internode, relay=None, senders={0: (0, 1), 2: (2, 3)})
        assert parse_sketch(sketch_to_json(replace(sketch, internode=table))).internode == table


def check(found: AutoSketch, made_for: Request, total_bytes: int) -> None:
    program = lower(found.synthesis.schedule)
    verify(program)
    simulated = predict_us(program, made_for.topology, total_bytes, FULL)
    bound = made_for.bound(program.demand, total_bytes)
    assert simulated >= bound.total_us * (1 - 1e-9)
    assert simulated == pytest.approx(found.synthesis.physical_us, rel=1e-6)


class TestSearch:
    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("collective", STANDARD)
    def test_every_collective(self, collective: Collective) -> None:
        for topology in (ndv2(nodes=2), torus((2, 3)), fat_tree((2, 2))):
            made_for = request(topology, collective, root=1)
            check(autosketch(made_for, 4 * MB), made_for, 4 * MB)

    def test_the_best_is_first_and_what_was_tried_is_told(self) -> None:
        topology = dgx1(nodes=2)
        found = autosketch(request(topology), 16 * MB)
        assert not found.struck
        assert not found.interrupted
        times = [row.trial_us if row.total_us is None else row.total_us for row in found.tried]
        assert all(a <= b for a, b in pairwise(times))
        assert found.tried[0].total_us == found.synthesis.physical_us
        assert replace(found.sketch, input_bytes=None) == found.tried[0].sketch
        assert len({row.sketch.name for row in found.tried}) == len(found.tried) >= 8
        assert {row.sketch.chunkup for row in found.tried} == {1, 2, 4}
        assert any(row.sketch.symmetries for row in found.tried)

    def test_it_beats_what_takes_no_thought(self) -> None:
        topology = dgx1(nodes=2)
        plain = guided_synthesis(
            topology, None, Collective.ALLGATHER, total_bytes=16 * MB, effort="quick"
        )
        found = autosketch(request(topology), 16 * MB)
        assert found.synthesis.physical_us < plain.physical_us

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("collective", [Collective.ALLGATHER, Collective.ALLREDUCE])
    def test_the_winner_is_reused_from_a_file(self, collective: Collective) -> None:
        """Its input size is in it, so nothing else needs saying."""
        topology = ndv2(nodes=2)
        found = autosketch(request(topology, collective), 16 * MB)
        sketch = parse_sketch(sketch_to_json(found.sketch))
        assert sketch == found.sketch
        again = guided_synthesis(topology, sketch, collective, engine=NativeSearch())
        assert again.total_bytes == 16 * MB
        assert again.physical_us <= found.synthesis.physical_us * 1.02

    def test_equal_seeds_give_equal_results(self) -> None:
        made_for = request(ndv2(nodes=2), seed=5)
        first, second = autosketch(made_for, MB), autosketch(made_for, MB)
        assert first.sketch == second.sketch
        assert first.tried == second.tried
        digests = {lower(f.synthesis.schedule).digest for f in (first, second)}
        assert len(digests) == 1

    def test_given_chunks_are_kept(self) -> None:
        topology = ndv2(nodes=2)
        found = autosketch(request(topology, chunks=3), MB)
        assert {row.sketch.chunkup for row in found.tried} == {3}
        reduced = request(topology, Collective.ALLREDUCE, chunks=32)
        assert autosketch(reduced, MB).synthesis.demand.chunks == 32
        with pytest.raises(ProgramError, match="8 chunks are given, sketches for allreduce need a"):
            autosketch(replace_chunks(reduced, 8), MB)

    def test_costly_sketches_need_good_trials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two DGX-2 took 40 s more for sketches a tenth slower than the best in their trials."""
        alone = request(ndv2(nodes=2))
        found = autosketch(alone, MB)
        trials = [row.trial_us for row in found.tried if row.trial_us < float("inf")]
        near, far = (
            replace(alone, best_us=lambda _, us=us: us) for us in (max(trials), min(trials) / 1.3)
        )
        assert autosketch(far, MB).tried == found.tried  # it costs little
        monkeypatch.setattr(module, "_COSTLY", 0.0)
        assert autosketch(near, MB).synthesis.physical_us == found.synthesis.physical_us
        with pytest.raises(ProgramError, match="no sketch .* far behind the best so far"):
            autosketch(far, MB)

    def test_trials_are_charged_to_the_budget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plan = module._PLANS["quick"]
        tight = {"quick": replace(plan, budget=plan.budget / 1e6)}
        monkeypatch.setattr(module, "_PLANS", tight)
        found = autosketch(request(dgx1(nodes=2)), MB)
        assert len(found.tried) == 1

    def test_the_safety_limit_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plan = module._PLANS["quick"]
        monkeypatch.setattr(module, "_PLANS", {"quick": replace(plan, limit_s=0.0)})
        found = autosketch(request(dgx1(nodes=2)), MB)
        assert found.struck
        assert lower(found.synthesis.schedule)

    @pytest.mark.parametrize("after", [0, 2, 10])
    def test_an_interrupt_keeps_the_best_so_far(self, after: int) -> None:
        reports = 0

        def report(_text: str) -> None:
            nonlocal reports
            reports += 1
            if reports == after + 1:
                raise KeyboardInterrupt

        made_for = replace(request(ndv2(nodes=2)), report=report)
        found = autosketch(made_for, MB)
        assert found.interrupted
        check(found, made_for, MB)

    def test_what_an_interrupt_leaves_is_made_by_one_brief_search(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was synthesized in full: Ctrl-C took as long as the rest of the search."""
        restarts: list[int] = []
        engine = NativeSearch()
        search = engine.search

        def counted(problem: SearchProblem, settings: SearchSettings) -> SearchResult:
            if len(restarts) == 2:
                restarts.append(0)
                raise KeyboardInterrupt
            restarts.append(settings.restarts)
            return search(problem, settings)

        monkeypatch.setattr(engine, "search", counted)
        made_for = request(ndv2(nodes=2), effort="normal")
        made_for = replace(made_for, method=replace(made_for.method, engine=engine))
        found = autosketch(made_for, MB)
        brief = module._TRIAL_RESTARTS
        assert restarts == [brief, brief, 0, brief]
        check(found, made_for, MB)
        assert "interrupted" in [row.problem for row in found.tried]

    def test_ranks_that_cannot_reach_each_other_are_named(self) -> None:
        halves = ring(4)
        apart = replace(
            halves, links=tuple(k for k in halves.links if {k.src, k.dst} in ({0, 1}, {2, 3}))
        )
        with pytest.raises(TopologyError, match="rank 0 cannot reach rank 2"):
            autosketch(request(apart), MB)

    @pytest.mark.slow
    def test_more_effort_is_worth_it(self) -> None:
        quick, normal = (
            autosketch(request(dgx2(nodes=2), effort=effort), 32 * MB)
            for effort in ("quick", "normal")
        )
        assert normal.synthesis.physical_us <= quick.synthesis.physical_us * (1 + 1e-9)
        names = {row.sketch.name for row in normal.tried}
        assert any("uc-" in name or "free" in name for name in names)


def replace_chunks(made_for: Request, chunks: int) -> Request:
    return replace(made_for, method=replace(made_for.method, chunks=chunks))
