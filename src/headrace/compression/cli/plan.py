"""``headrace compression plan``: which codec makes a job's step shortest, on which network."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.answers import WrittenFile, result_of
from headrace.cli.console import print_written, terminal
from headrace.cli.former import Former
from headrace.cli.options import (
    Bandwidth,
    count_option,
    output_option,
    refuse_without_effect,
    size_option,
    time_option,
    topology_option,
)
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.plan.advice import (
    LOCAL_STEPS,
    AdviceRow,
    fastest_gentle,
    line_to_write,
    row_accuracy,
    row_sent_bytes,
)
from headrace.compression.plan.models import MODELS, bundled_profile
from headrace.compression.plan.network import (
    HOST_LATENCY_US,
    BookNetwork,
    FormulaNetwork,
    assumed_latency_us,
)
from headrace.compression.profile import CompressionProfile
from headrace.units import parse_bandwidth, parse_count, parse_size, parse_time

if TYPE_CHECKING:
    from headrace.compression.plan.network import NetworkTimes
    from headrace.compression.plan.plan import CompressionPlan

_Topology = Annotated[
    Path | None,
    topology_option("in place of a formula: it has the ranks and their links"),
    Former("--book"),
]
_Memory = Annotated[
    str | None,
    size_option("Memory of the device; 0: any", default="the profile's"),
]

_Latency = Annotated[
    str | None,
    time_option(
        "Mean over the messages; of a ring, one in --ranks-per-host leaves a host",
        default=f"{HOST_LATENCY_US:g}us between hosts",
    ),
    Former("--latency", unit="us"),
]

_Scheme = Annotated[
    str,
    typer.Option(help="How gradients are summed: ring, tree or server (Table 4.2)."),
    Former("--network"),
]
_Codecs = Annotated[
    str | None,
    typer.Option(help="Codecs, by commas.", show_default="the profile's"),
]


@dataclass(frozen=True, kw_only=True)
class CodecStepResult(AdviceRow):
    """A codec's predicted step, with the bytes that leave a rank and its effect on the gradient."""

    sent_bytes: float
    accuracy: str
    gentle: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionPlanResult:
    """Predicted steps with every codec: the fastest, the line to write for it, and why."""

    file: WrittenFile | None
    winner: CodecStepResult
    fastest_gentle: CodecStepResult
    write: str
    why: str
    alone_us: float
    needed_compression: float | None
    codecs: list[CodecStepResult]


def advise_command(
    profile: Annotated[
        Path | None, typer.Argument(help="A compression profile.", metavar="PROFILE")
    ] = None,
    output: Annotated[
        Path | None,
        output_option("File to write: the plan, which is printed in any case."),
    ] = None,
    bundled: Annotated[
        str | None,
        typer.Option(help=f"A bundled profile in place of a file: {', '.join(MODELS)}."),
        Former("--model"),
    ] = None,
    batch: Annotated[
        str | None,
        count_option("Examples of a batch, of one rank, with --bundled", default="the paper's"),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Number of ranks.", min=2), Former("--workers")
    ] = None,
    bandwidth: Bandwidth = None,
    scheme: _Scheme = "ring",
    latency: _Latency = None,
    ranks_per_host: Annotated[int, typer.Option(help="Ranks that share a link.", min=1)] = 1,
    topology: _Topology = None,
    codecs: _Codecs = None,
    memory: _Memory = None,
    local_steps: Annotated[
        int, typer.Option(help="For the row of fewer exchanges: steps between averages.", min=1)
    ] = LOCAL_STEPS,
) -> CompressionPlanResult:
    """Predict a step's time with every codec, and say which is fastest and why.

    From a measured profile, or a bundled one; on equal links with a formula for the collectives,
    or on a network that is known.

    Example: headrace compression plan --bundled resnet50 --ranks 64 --bandwidth 10Gbps -o job.plan
    """
    from headrace.compression.cli.show import advice_tables
    from headrace.compression.plan.plan import CompressionPlan

    job_profile = _profile(profile, bundled, batch)
    specs = tuple(CodecSpec.parse(text) for text in (codecs or "").split(",") if text.strip())
    times, origin = _network(topology, ranks, bandwidth, latency, scheme, ranks_per_host)
    plan = CompressionPlan.make(
        job_profile,
        times,
        codecs=specs,
        memory_bytes=None if memory is None else parse_size(memory, "--memory"),
        local_steps=local_steps,
        provenance={"profile": job_profile.digest, **origin},
    )
    for table in advice_tables(plan, False):
        terminal().print(table)
    if output is not None:
        plan.save(output)
        print_written(output)
    return _result(plan, output)


def _result(plan: "CompressionPlan", output: Path | None) -> CompressionPlanResult:
    advice = plan.advice

    def step(row: AdviceRow) -> CodecStepResult:
        accuracy = row_accuracy(row, plan.profile)
        return result_of(
            CodecStepResult,
            row,
            sent_bytes=row_sent_bytes(row, plan.profile, plan.network.workers),
            accuracy=accuracy.text,
            gentle=accuracy.gentle,
        )

    return result_of(
        CompressionPlanResult,
        advice,
        file=None if output is None else WrittenFile.at(output),
        winner=step(advice.winner),
        fastest_gentle=step(fastest_gentle(advice, plan.profile)),
        write=line_to_write(advice.winner),
        codecs=[step(row) for row in advice.rows],
    )


def _profile(file: Path | None, model: str | None, batch: str | None) -> CompressionProfile:
    if (file is None) == (model is None):
        count = "neither" if file is None else "both"
        raise CompressionError(
            f"profile: {count} of PROFILE and --bundled given, needs one; headrace compression "
            f"measure writes a profile, and the bundled models are {', '.join(MODELS)}"
        )
    if model is not None:
        return bundled_profile(model, None if batch is None else parse_count(batch, "--batch"))
    if batch is not None:
        raise CompressionError("--batch is for --bundled alone: a profile holds for its own batch")
    assert file is not None
    return CompressionProfile.load(file)


def _formula(
    scheme: str,
    workers: int | None,
    bandwidth: str | None,
    latency: str | None,
    ranks_per_host: int,
) -> tuple[FormulaNetwork, dict[str, Any]]:
    """Return the network, and what was assumed of it."""
    for name, value in (("ranks", workers), ("bandwidth", bandwidth)):
        if value is None:
            raise CompressionError(
                f"--{name} is missing, needs a value such as "
                f"{'64' if name == 'ranks' else '10Gbit/s'}, or --topology with a network"
            )
    assert workers is not None
    assert bandwidth is not None
    network = FormulaNetwork(
        scheme=scheme,
        workers=workers,
        bandwidth_bytes_per_s=parse_bandwidth(bandwidth, "--bandwidth"),
        alpha_us=0.0 if latency is None else 1e6 * parse_time(latency, "--latency"),
        ranks_per_host=ranks_per_host,
    )
    if latency is not None:
        return network, {}
    assumed = f"{HOST_LATENCY_US:g} us between hosts, typical of TCP; --latency sets it"
    network = replace(network, alpha_us=assumed_latency_us(scheme, ranks_per_host))
    return network, {"assumed_latency": assumed}


def _network(
    topology: Path | None,
    ranks: int | None,
    bandwidth: str | None,
    latency: str | None,
    scheme: str,
    ranks_per_host: int,
) -> "tuple[NetworkTimes, dict[str, Any]]":
    """Return the network of a file, or else of equal links; and its provenance."""
    if topology is None:
        return _formula(scheme, ranks, bandwidth, latency, ranks_per_host)
    book = _book_network(topology, ranks)
    options = {
        "--bandwidth": bandwidth,
        "--latency": latency,
        "--scheme": scheme != "ring",
        "--ranks-per-host": ranks_per_host != 1,
    }
    refuse_without_effect(options, "with --topology: the file has the links")
    return book


def _book_network(file: Path, workers: int | None) -> "tuple[NetworkTimes, dict[str, Any]]":
    from headrace.collectives import predictor

    network = BookNetwork(predictor=predictor(file))
    if workers not in (None, network.workers):
        raise CompressionError(
            f"--ranks is {workers}, needs {network.workers} as in {file}, or nothing"
        )
    return network, {"book": str(file)}
