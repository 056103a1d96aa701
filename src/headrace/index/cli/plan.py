"""``headrace index plan``: the configuration for a profile's workload."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.answers import WrittenFile
from headrace.cli.console import terminal, text_of, warn_if_busy
from headrace.cli.options import flag, output_option, refuse_without_effect
from headrace.cli.progress import progress
from headrace.host_memory import last_level_cache_bytes

if TYPE_CHECKING:
    from headrace.index.plan.plan import IndexPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationResult:
    """A configuration of an index, predicted or run."""

    configuration: str
    operations_per_s: float
    bytes_per_key: float
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlanResult:
    """The configurations that were compared, the best first."""

    file: WrittenFile
    candidates: list[ConfigurationResult]


def plan_index_command(
    profile: Annotated[
        Path,
        typer.Argument(metavar="PROFILE", help="An index profile.", exists=True, dir_okay=False),
    ],
    output: Annotated[Path, output_option("File to write: the index plan.")],
    trial: Annotated[
        bool, typer.Option(help="Run the candidates that are predicted to be best on the sample.")
    ] = True,
    top: Annotated[
        int | None,
        typer.Option(min=1, help="Most candidates that are run; default: what seconds allow."),
    ] = None,
    bytes_per_key: Annotated[
        float | None, typer.Option(min=1, help="Cap of memory, at the end of the workload.")
    ] = None,
    frontier: Annotated[
        bool,
        flag(
            "--frontier",
            "Run finds alone and inserts alone with every configuration, for the report.",
        ),
    ] = False,
) -> IndexPlanResult:
    """Choose the structure: all are predicted, the best are run on this machine.

    Example: headrace index plan keys.profile -o index.plan
    """
    from headrace.index.plan.choose import plan as choose
    from headrace.index.plan.model import LAST_LEVEL_CACHE
    from headrace.index.profile import IndexProfile
    from headrace.index.run.trial import keep_memory
    from headrace.index.run.trial import trial as run_trial
    from headrace.job.load import LoadWatch

    if not trial:
        refuse_without_effect({"--top": top, "--frontier": frontier}, "with --no-trial")
    loaded = IndexProfile.load(profile)
    if not len(loaded.sample):
        refuse_without_effect(
            {"--top": top, "--frontier": frontier}, "on a profile without operations"
        )
        trial = False
    if trial:
        keep_memory(loaded.sample)
    origin = {"profile": dict(loaded.provenance), LAST_LEVEL_CACHE: last_level_cache_bytes()}
    watch = LoadWatch()
    with progress(terminal(stderr=True), visible=True) as report:
        plan = choose(
            loaded,
            trial=run_trial if trial else None,
            top=top,
            most_bytes_per_key=bytes_per_key,
            frontier=frontier,
            provenance=origin,
            progress=report,
        )
    if trial:
        plan = replace(plan, provenance={**plan.provenance, **watch.load().to_provenance()})
    plan.save(output)
    _print(plan, output)
    warn_if_busy(plan.provenance)
    return _result(plan, output)


def _result(plan: "IndexPlan", output: Path) -> IndexPlanResult:
    candidates = [
        ConfigurationResult(
            configuration=candidate.configuration.name,
            operations_per_s=candidate.per_s,
            bytes_per_key=candidate.bytes_per_key,
            runs=candidate.trials,
        )
        for candidate in plan.candidates
    ]
    return IndexPlanResult(file=WrittenFile.at(output), candidates=candidates)


def _print(plan: "IndexPlan", output: Path) -> None:
    from headrace.index.plan.cache import cache_text
    from headrace.index.report.tables import trials_text

    best = plan.chosen
    console = terminal()
    tried = f"by {trials_text(best)}" if best.trials else "predicted"
    console.print(
        f"{best.configuration.name}: {best.per_s / 1e6:.3g} M operations/s and "
        f"{best.bytes_per_key:.3g} bytes per key, {tried}.",
        soft_wrap=True,
    )
    if note := cache_text(plan):
        console.print(note, soft_wrap=True)
    console.print(f"Wrote {text_of(output)}.", soft_wrap=True)
