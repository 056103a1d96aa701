"""Index profiles and plans as tables, and the lines of a plan's check."""

from collections.abc import Iterable, Iterator

from rich.console import RenderableType

from headrace.artifact import Artifact, Table
from headrace.cli.tables import facts, rows
from headrace.index.errors import ChoiceError
from headrace.index.plan.cache import cache_text
from headrace.index.plan.model import shipped_model
from headrace.index.plan.plan import ConfigurationCandidate, IndexPlan
from headrace.index.profile import IndexProfile, TraceEncoding
from headrace.index.tables import LEAVES
from headrace.job.load import load_text

_CLOSE = 1e-3
"""Relative difference of predictions that count as equal: other processors' arithmetic."""


def index_profile_tables(profile: IndexProfile, everything: bool) -> Iterable[RenderableType]:
    """Return the tables of a profile: the workload, and its keys' structure."""
    yield facts("index profile", dict(index_profile_summary(profile)), everything=everything)
    fits = profile.encoding.tables["fits"]
    yield from rows(
        "distance of keys from lines",
        ("keys of a window", "half of the windows", "nine tenths", "all", "evenness"),
        fit_rows(fits),
        everything=everything,
    )


def index_profile_summary(profile: IndexProfile) -> list[tuple[str, str]]:
    """Return (label, value) rows of a profile."""
    sample = profile.sample
    return [
        ("keys", f"{profile.loaded:,} {profile.kind} at first"),
        ("operations", f"{profile.operations:,}: {operations_text(profile.encoding)}"),
        ("sample", f"{len(sample.loaded):,} keys, {len(sample):,} operations"),
        ("hot keys", hot_text(profile.encoding)),
        ("source", str(profile.provenance.get("source", "not stated"))),
    ]


def operations_text(encoding: TraceEncoding) -> str:
    """Return the shares of the operations as a line."""
    features = encoding.features
    parts = [f"{features[f'{name}_share']:z.1%} {name}" for name in ("find", "insert")]
    parts += [
        f"{features[f'{name}_share']:z.1%} {name}"
        for name in ("erase", "scan")
        if features[f"{name}_share"]
    ]
    notes = {"missing": "of finds miss", "assign": "of inserts assign", "append": "append"}
    parts += [
        f"{features[f'{name}_share']:z.1%} {text}"
        for name, text in notes.items()
        if features[f"{name}_share"] >= 0.005
    ]
    return ", ".join(parts)


def hot_text(encoding: TraceEncoding) -> str:
    """Return the share of reads of the most frequent keys as a line."""
    hot = encoding.tables["hot"]
    pairs = zip(hot["keys"].tolist(), hot["reads"].tolist(), strict=True)
    return "reads of the top " + ", ".join(f"{top}: {share:z.1%}" for top, share in pairs)


def fit_rows(fits: Table) -> list[tuple[object, ...]]:
    """Return (keys, residuals in positions of half, nine tenths and all windows, evenness) rows."""
    names = ("residual50", "residual90", "residual100")
    return [
        (
            int(scale),
            *(f"{2 ** float(fits[name][place]) - 1:.3g}" for name in names),
            f"{float(fits['even50'][place]):.3g}",
        )
        for place, scale in enumerate(fits["scale"])
    ]


def index_plan_tables(plan: IndexPlan, everything: bool) -> Iterable[RenderableType]:
    """Return the tables of a plan: its choice, and all candidates."""
    yield facts("index plan", dict(index_plan_summary(plan)), everything=everything)
    yield from rows(
        "candidates",
        CANDIDATE_COLUMNS,
        [candidate_row(candidate) for candidate in plan.candidates],
        everything=everything,
    )


CANDIDATE_COLUMNS = (
    "name",
    "predicted, M/s",
    "tried, M/s",
    "trials",
    "bytes per key",
    "find, ns",
    "insert, ns",
)


def candidate_row(candidate: ConfigurationCandidate) -> tuple[object, ...]:
    """Return the cells of `CANDIDATE_COLUMNS`."""
    return (
        candidate.configuration.name,
        f"{candidate.predicted_per_s / 1e6:.3g}",
        f"{candidate.trial_per_s / 1e6:.3g}" if candidate.trials else "",
        candidate.trials or "",
        f"{candidate.bytes_per_key:.3g}",
        f"{candidate.read_ns:.4g}",
        f"{candidate.write_ns:.4g}",
    )


def index_plan_summary(plan: IndexPlan) -> list[tuple[str, str]]:
    """Return (label, value) rows of a plan."""
    best = plan.chosen
    tried = sum(candidate.trials > 0 for candidate in plan.candidates)
    used = ", ".join(f"{name} {value}" for name, value in best.configuration.used.items())
    measured = (
        f"{best.trial_per_s / 1e6:.3g} M operations/s by {trials_text(best)}, "
        if best.trials
        else ""
    )
    cap = plan.most_bytes_per_key
    note = cache_text(plan)
    leaves = [f"{count:,} {name}" for name, count in zip(LEAVES, best.leaves, strict=True) if count]
    return [
        ("leaves", f"{best.configuration.leaf}: {used}"),
        ("throughput", f"{measured}{best.predicted_per_s / 1e6:.3g} M operations/s predicted"),
        ("memory", f"{best.bytes_per_key:.3g} bytes per key" + (f", cap {cap:g}" if cap else "")),
        *([("leaf mix", ", ".join(leaves))] if leaves else []),
        ("runner-up", _runner_up(plan)),
        ("candidates", f"{len(plan.candidates)}, {tried} of them tried"),
        *([("machine", load_text(plan.provenance))] if tried else []),
        *([("cache", note)] if note else []),
        ("operations", operations_text(plan.encoding)),
        ("profile", plan.profile_digest[:12]),
    ]


def trials_text(candidate: ConfigurationCandidate) -> str:
    """Return the number of a candidate's trials and their spread, "21 trials (spread 4%)"."""
    count = f"{candidate.trials} trial{'' if candidate.trials == 1 else 's'}"
    spread = candidate.trial_spread
    return count if spread is None else f"{count} (spread {spread:z.0%})"


def _runner_up(plan: IndexPlan) -> str:
    if len(plan.candidates) < 2:
        return "none"
    best, second = plan.candidates[:2]
    evidence = f", by {trials_text(second)}" if second.trials else ""
    return f"{second.configuration.name}, {second.per_s / best.per_s - 1:+z.1%}{evidence}"


def verify_index_plan(artifact: Artifact, source: str) -> Iterator[str]:
    """Check a plan's choice again, and its predictions where they are of the package's model.

    Raises
    ------
    ChoiceError : naming the candidates, or the figure that differs.
    """
    plan = IndexPlan.from_artifact(artifact, source)
    plan.verify()
    model = shipped_model()
    again = ""
    if plan.settings.get("model") == model.digest:
        predicted = model.predict(
            plan.encoding, [candidate.configuration for candidate in plan.candidates]
        )
        for candidate, figure in zip(plan.candidates, predicted.operations_per_s, strict=True):
            if abs(figure - candidate.predicted_per_s) > _CLOSE * figure:
                raise ChoiceError(
                    f"{source}: predicted_per_s of {candidate.configuration.name} is "
                    f"{candidate.predicted_per_s:.6g}, the model's is {figure:.6g}"
                )
        again = ", predictions computed again"
    tried = sum(candidate.trials > 0 for candidate in plan.candidates)
    yield (
        f"ok {artifact.digest[:12]} {plan.configuration.name} is the best of "
        f"{len(plan.candidates)}, {tried} tried{again}"
    )
