"""Artifacts of every kind that are built from integers or NumPy's scalars: one digest, always.

A topology of links that cost 46 us was saved with the integer and read with 46.0, which is other
JSON with another digest. The bounds in a plan or book name the topology's digest: files made of
integers were written without an error, and refused when they were read.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.artifact as artifact_io
from headrace.artifact import Artifact
from headrace.attention import (
    AttentionPlan,
    AttentionProfile,
    FrontierPoint,
    LayerHeads,
    LayerPlan,
    LayerProfile,
    StorageFormat,
)
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.measure.pcie.probes import HardwareProbes, ProbeKind
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.collectives.plan.generators.orbits.plan import OrbitPlan
from headrace.collectives.plan.generators.templates.ring import ring
from headrace.collectives.plan.ir.lower import lower
from headrace.compression.families import CodecSpec
from headrace.compression.plan.network import FormulaNetwork
from headrace.compression.plan.plan import CompressionPlan
from headrace.compression.profile import (
    CodecTiming,
    CompressionProfile,
    GradientBucket,
    ModelTensor,
)
from headrace.embeddings import (
    CommitTimes,
    EmbeddingPlan,
    EmbeddingProfile,
    EmbeddingRecord,
    ExampleBytes,
    JobChange,
    JobTimes,
    PredictedStep,
    ProcessorSeconds,
    RowReuse,
    RowTransfers,
    StepBytes,
    StepCosts,
    StepRows,
    Synchronisation,
    TableAccesses,
    TimesSample,
    TrainerTimes,
)
from headrace.errors import TopologyError
from headrace.index.configuration import Configuration
from headrace.index.measure.survey import survey_trace
from headrace.index.measure.workload import Workload, workload_trace
from headrace.index.plan.plan import ConfigurationCandidate, IndexPlan
from headrace.index.profile import IndexProfile
from headrace.kinds import artifact_kinds
from headrace.memory.plan.baselines import sqrt_schedule
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.verify import verify
from headrace.memory.profile import MemoryProfile
from headrace.topology import Link, SharedCapacity, Topology
from headrace.topology.profile import Profile
from tests.memory.graphs import chain, implementation
from tests.memory.test_profile import profile_of

Number = Callable[[int], Any]
"""Makes the numbers that an artifact is built from."""

NUMBERS: dict[str, Number] = {
    "float": float,
    "int": int,
    "numpy integer": np.int64,
    "numpy float": np.float32,
}


def topology(number: Number) -> Topology:
    pairs = [(0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2)]
    return Topology(
        name="three hosts",
        hosts=("a", "b", "c"),
        rank_host=(0, 1, 2),
        links=tuple(
            Link(src=src, dst=dst, alpha_us=number(46), beta_us_per_mb=number(8000))
            for src, dst in pairs
        ),
        shared=(SharedCapacity(name="uplink", links=(0, 2), beta_us_per_mb=number(4000)),),
    )


def book(number: Number) -> PlanBook:
    collectives = (Collective.ALLREDUCE, Collective.BROADCAST)
    return build_book(topology(number), collectives=collectives, sizes=[1 << 20])


def profile(number: Number) -> Profile:
    columns = ("alpha_us", "beta_us_per_mb", "alpha_variance", "beta_variance")
    pairs = ("bytes_per_s", "median_rtt_us", "min_rtt_us", "kernel_rtt_us")
    ends = {name: np.array([rank], np.int32) for rank, name in enumerate(("src", "dst"))}
    counts = {name: np.array([1], np.int32) for name in ("chunks", "chunk_bytes")}
    return Profile(
        topology=topology(number),
        groups=((0, 1), (2,)),
        samples={**ends, **counts, "us": np.array([3.0])},
        fits={**ends, **{name: np.ones(1) for name in columns}},
        pairs={**ends, **{name: np.ones(1) for name in pairs}},
        measured_at=number(1 << 30),
        took_s=number(12),
        valid_for_s=number(3600),
    )


def compression_profile(number: Number) -> CompressionProfile:
    return CompressionProfile(
        model="mlp",
        device="cpu",
        batch=8,
        tensors=(ModelTensor(name="a", shape=(64, 32)), ModelTensor(name="b", shape=(640,))),
        buckets=(
            GradientBucket(tensors=1, ready_us=number(40)),
            GradientBucket(tensors=1, ready_us=number(100)),
        ),
        forward_us=number(50),
        backward_us=number(100),
        other_us=number(1),
        gamma=number(1),
        contention=number(0),
        codecs={
            "sign": CodecTiming(
                elements=(1000, 2000),
                encode_us=(number(20), number(30)),
                decode_us=(number(1), number(2)),
            )
        },
        provenance={"kind": "measured", "source": "a test", "batches": np.int64(3)},
    )


def compression_plan(number: Number) -> CompressionPlan:
    network = FormulaNetwork(
        scheme="ring",
        workers=4,
        bandwidth_bytes_per_s=number(10**8),
        alpha_us=number(30),
        ranks_per_host=1,
    )
    return CompressionPlan.make(
        compression_profile(number),
        network,
        codecs=(CodecSpec.parse("sign"),),
        memory_bytes=None,
        local_steps=16,
        provenance={"seed": number(1)},
    )


def index_profile(number: Number) -> IndexProfile:
    keys = np.random.default_rng(2).integers(0, 2**40, 2000)
    survey = survey_trace(workload_trace(keys, Workload(erases=0.1)), provenance={"source": "test"})
    encoding = survey.encoding
    rounded = {name: number(round(value)) for name, value in encoding.features.items()}
    return replace(survey, encoding=replace(encoding, features=rounded))


def index_plan(number: Number) -> IndexPlan:
    configuration = Configuration(
        leaf="gapped",
        leaf_keys=1024,
        max_search=number(4),
        max_shifts=number(32),
        insert_fraction=number(0),
    )
    best, second = (
        ConfigurationCandidate(
            configuration=configuration,
            predicted_per_s=number(speed),
            predicted_bytes_per_key=number(16),
        )
        for speed in (200, 100)
    )
    return IndexPlan(
        candidates=(best, second),
        encoding=index_profile(number).encoding,
        profile_digest="0" * 64,
        most_bytes_per_key=number(20),
        settings={"trials": np.int64(2)},
    )


def memory_profile(number: Number) -> MemoryProfile:
    graph = chain(9, resident=5)
    slow = replace(
        graph.operators[0],
        implementations=(implementation(time_us=number(7), creates=(0,)),),
    )
    return profile_of(replace(graph, operators=(slow, *graph.operators[1:])))


def memory_plan(number: Number) -> MemoryPlan:
    made_for = memory_profile(number)
    schedule = sqrt_schedule(made_for.graph)
    figures = verify(made_for.graph, schedule)
    return MemoryPlan(
        profile=made_for,
        budget_bytes=100,
        schedule=schedule,
        peak_bytes=figures.peak_bytes,
        time_us=number(round(figures.time_us)),
        bound_us=number(20),
        settings={"seed": np.int64(3)},
    )


def probes(number: Number) -> HardwareProbes:
    return HardwareProbes.of(1, 1, [(ProbeKind.LOOPBACK, -1, -1, 0, number(5))])


def orbit_plan(number: Number) -> OrbitPlan:
    sends = {
        "dst": [1],
        "block": [0],
        "chunk": [0],
        "origin": [0],
        "reduce": [0],
        "message": [0],
    }
    return OrbitPlan.of(
        Collective.ALLGATHER,
        1,
        np.array([[1, 0]], np.int32),
        {name: np.array([number(entry) for entry in column]) for name, column in sends.items()},
    )


def attention_profile(number: Number) -> AttentionProfile:
    heads = LayerHeads(query_heads=2, key_value_heads=1, dim=32)
    pair = np.array([[number(0), number(1)], [number(1), number(0)]])
    layer = LayerProfile(
        heads=heads,
        correlation=1 - pair,
        correlation_beyond_first=1 - pair,
        sample_correlation=1 - pair,
        distance=pair,
        output_error=pair,
        uniformity=np.array([number(0), number(1)]),
        changes=np.array([number(1), number(0)]),
    )
    return AttentionProfile(
        layers=(layer, layer), model="a" * 64, text="b" * 64, samples=3, tokens=64
    )


def attention_plan(number: Number) -> AttentionPlan:
    heads = LayerHeads(query_heads=4, key_value_heads=2, dim=32)
    layer = LayerPlan(
        heads=heads,
        clusters=2,
        key_heads=1,
        representatives=(0, 1, 0, 1),
        keys=StorageFormat.INT4,
        values=StorageFormat.INT8,
    )
    own = FrontierPoint(name="own", share=number(1), added_loss=number(0), standard_error=number(0))
    return AttentionPlan(
        layers=(layer, layer),
        model="a" * 64,
        text="b" * 64,
        element_bytes=2,
        first_tokens=5,
        frontier=(own,),
        chosen="by hand",
    )


def embedding_profile(number: Number) -> EmbeddingProfile:
    transfers = RowTransfers(rows=number(1), critical_rows=number(0))
    return EmbeddingProfile(
        batch=4,
        batches=9,
        trainers=2,
        reuse=RowReuse(*[np.array([number(1), number(0), number(1)])] * 5),
        lrpp={3: StepRows(*[number(2)] * 9)},
        example_bytes=ExampleBytes(*[number(4)] * 5),
        processor_seconds=ProcessorSeconds(read=number(1)),
        transfers=dict.fromkeys(Synchronisation, transfers),
        tables=(TableAccesses(accesses=9, rows=3, rows_once=1, top_accesses=5),) * 2,
        counted=36,
    )


def embedding_plan(number: Number) -> EmbeddingPlan:
    return EmbeddingPlan(
        batch=4,
        trainers=2,
        servers=1,
        readers=1,
        lookahead=3,
        prefetch=2,
        cache_bytes=4096,
        row_bytes=16,
        gradient_bytes=16,
        dense_bytes=0,
        commit_every=50,
        synchronisation=Synchronisation.TARGETED,
        rows=number(7),
        fetched_rows=number(2),
        resident_rows=number(9),
        exchanged_rows=number(5),
        critical_rows=number(3),
        moved=StepBytes(**{field.name: number(6) for field in fields(StepBytes)}),
        costs=StepCosts(compute_s=number(1), link_bytes_per_s=number(10_000)),
        time=PredictedStep(resources_s={"server": number(1)}),
        commits=CommitTimes(every=9, rows=number(7), share=number(1), redone_share=number(0)),
    )


def embedding_record(number: Number) -> EmbeddingRecord:
    steps = TrainerTimes(batches=3, compute_s=number(2))
    times = JobTimes()
    times.samples.append(TimesSample(end_s=number(2), sums={("trainer", 0): steps}))
    change = JobChange(
        name="shares", before=(0.5, 0.5), after=(number(1), number(0)), batch=3, reason="rates"
    )
    record = EmbeddingRecord.of(times, batch=4, trainers=1, servers=1, readers=1)
    return replace(record, changes=(change,))


BUILDERS: dict[str, Callable[[Number], Any]] = {
    "attention-profile": attention_profile,
    "attention-plan": attention_plan,
    "embedding-plan": embedding_plan,
    "embedding-profile": embedding_profile,
    "embedding-record": embedding_record,
    "topology": topology,
    "profile": profile,
    "plan": lambda number: book(number).entries[0].plan,
    "plan-book": book,
    "orbit-plan": orbit_plan,
    "program": lambda number: lower(
        ring(Demand(collective=Collective.ALLREDUCE, ranks=3, chunks=3))
    ),
    "hardware-probes": probes,
    "compression-profile": compression_profile,
    "compression-plan": compression_plan,
    "index-profile": index_profile,
    "index-plan": index_plan,
    "memory-profile": memory_profile,
    "memory-plan": memory_plan,
}


def artifact_of(value: Any) -> Artifact:
    return value.to_artifact()


def test_every_kind_is_built_here() -> None:
    assert set(BUILDERS) == set(artifact_kinds())


@pytest.mark.sampled(13)
@pytest.mark.parametrize("name", [name for name in NUMBERS if name != "float"])
@pytest.mark.parametrize("kind", BUILDERS)
def test_what_is_built_from_any_numbers_has_the_digest_of_floats_and_is_read(
    kind: str, name: str, tmp_path: Path
) -> None:
    digest = artifact_of(BUILDERS[kind](float)).digest
    built = artifact_of(BUILDERS[kind](NUMBERS[name]))
    assert built.digest == digest
    built.save(tmp_path / "file")
    value = artifact_kinds()[kind].load(artifact_io.load(tmp_path / "file", kind), "file")
    assert artifact_of(value).digest == digest
    assert artifact_of(value).to_bytes() == built.to_bytes()


def test_wrong_numbers_are_refused_by_the_name_of_their_field() -> None:
    with pytest.raises(TopologyError, match="alpha_us: '46' is not a number"):
        Link(src=0, dst=1, alpha_us="46", beta_us_per_mb=1)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=r"src: 0\.5 is not an integer"):
        Link(src=0.5, dst=1, alpha_us=46, beta_us_per_mb=1)  # type: ignore[arg-type]
    at_least: Any = np.True_
    capacity = SharedCapacity(name="nic", links=(), beta_us_per_mb=1, at_least=at_least)
    assert capacity.at_least is True


def test_break_evens_of_a_network_in_float32_are_found() -> None:
    """The search for a bandwidth never ended: float32 cannot halve the interval so often."""
    assert compression_plan(np.float32).advice == compression_plan(float).advice


def test_sizes_in_bytes_may_be_floats_that_are_integers(tmp_path: Path) -> None:
    """``sizes=[1e6]`` was saved as a float, which no reader takes for a number of bytes."""
    made = build_book(topology(int), collectives=[Collective.ALLREDUCE], sizes=[1e6, 4e6])  # type: ignore[list-item]
    made.save(tmp_path / "book")
    assert PlanBook.load(tmp_path / "book").digest == made.digest
