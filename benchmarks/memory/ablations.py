"""Plans with one kind of implementation at a time, Gist's encodings, and sizes of programs.

The paper's kinds of implementations (Figures 4.5 and A.1), its comparison with Gist (Table 4.3)
and its sizes of programs (Table 4.5), on the steps of `planning`.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.harness import Report
from benchmarks.kept import KeptRows
from benchmarks.memory.checkmate import checkmate_program
from benchmarks.memory.planning import FULL, NOOP, P100, Steps
from benchmarks.memory.workloads import PAPER
from headrace._native import ScheduleSearch
from headrace.memory.errors import BudgetError
from headrace.memory.graph import Graph, Implementation
from headrace.memory.plan.liveness import exact_program
from headrace.memory.plan.solution import SolveLimits
from headrace.memory.plan.solve import solve_schedule
from headrace.solver import LinearModel

SECTION = "ablations"
IN_PLACE, OF_GRADIENT, FROM_OUTPUT = "in place", "in place of the gradient", "from output"
ENCODED, SPLIT, ALGORITHM = "encoded", "split", "algorithm"
_WORDS: Mapping[str, Collection[str]] = {
    IN_PLACE: ("place",),
    OF_GRADIENT: ("gradient",),  # batch norms; Gist has only activations in place
    FROM_OUTPUT: ("output", "input"),
    ENCODED: ("signs", "bytes", "bits", "indices"),
    SPLIT: ("chunks", "parts"),
    ALGORITHM: ("algorithm",),
}
KINDS: Mapping[str, Collection[str]] = {
    "none": (),
    "in place": (IN_PLACE, OF_GRADIENT),
    "output-activated": (FROM_OUTPUT,),
    "intermediate-activated": (ENCODED,),
    "convolution": (ALGORITHM,),
    "all": tuple(_WORDS),
}
"""The paper's kinds of implementations (Figure 4.5). A roofline has one algorithm of
convolutions, a GPU's profile several."""
_GIST = (IN_PLACE, ENCODED)
_PAPERS_GIST = {
    "vgg16": 0.76,
    "resnet50": 0.58,
    "googlenet": 0.52,
    "mobilenet_v2": 0.69,
    "unet": 0.73,
}
"""Memory of Gist over PyTorch's, as the paper measured it (Table 4.3)."""
_SHARES, _QUICK_SHARES = (0.7, 0.53, 0.4, 0.33), (0.53,)
_QUICK_NETWORKS = ("unet", "resnet50")
_SECONDS, _QUICK_SECONDS = 60.0, 4.0
_ENOUGH = SolveLimits().gap
"""Gap at which a search ends: plans nearer to each other than that are not told apart."""
_STATISTICS_BYTES = 10**10
_QUICK_PROGRAMS = ("unet", "vgg16")

_WORSE = "ablations-all-slower-than-one-kind"
_BELOW_GIST = "ablations-slower-in-gists-memory"


def bars() -> dict[str, str]:
    """Return the bars: cells where one kind beats all, networks where Gist is faster."""
    return {_WORSE: "<= 0", _BELOW_GIST: "<= 0"}


def measure(report: Report, *, quick: bool) -> None:
    """Plan all cells that an interrupted run has not planned."""
    kept = KeptRows("memory", SECTION, quick=quick, folder=report.state_folder)
    seconds = _QUICK_SECONDS if quick else _SECONDS
    for workload in PAPER:
        planned = not quick or workload.name in _QUICK_NETWORKS
        counted = not quick or workload.name in _QUICK_PROGRAMS
        if not planned and not counted:
            continue
        steps = Steps.of(workload)
        if planned:
            for share in _QUICK_SHARES if quick else _SHARES:
                key = f"{workload.name} {share}"
                if key not in kept.rows:
                    kept.add(key, {"table": "kinds", **kinds_row(steps, share, seconds)})
            if f"{workload.name} gist" not in kept.rows:
                kept.add(f"{workload.name} gist", {"table": "gist", **gist_row(steps, seconds)})
        if counted and f"{workload.name} programs" not in kept.rows:
            kept.add(f"{workload.name} programs", {"table": "programs", **_program_row(steps)})
    _report(report, list(kept.rows.values()))
    kept.clear()


def _report(report: Report, rows: list[dict[str, Any]]) -> None:
    titles = {
        "kinds": f"overhead by kind of implementation ({P100.name})",
        "gist": f"Gist's encodings ({P100.name})",
        "programs": "integer programs at 10 GB, before presolve",
    }
    slower = beaten = 0
    for row in rows:
        table = row["table"]
        shown = {name: value for name, value in row.items() if name != "table"}
        report.row(titles[table], **shown)
        if table == "kinds":
            found = [row[name] for name in KINDS if name != "all" and row.get(name) is not None]
            slower += bool(found) and (row["all"] is None or row["all"] > min(found) + _ENOUGH)
        elif table == "gist":
            beaten += row["headrace"] is None or row["headrace"] > row["overhead"] + _ENOUGH
    report.bar(_WORSE, slower)
    report.bar(_BELOW_GIST, beaten)
    report.note(
        "ablations: overhead over a plain run by first implementations, within a share of its "
        "peak; none: no schedule was found. Recomputation is allowed in all rows of the first "
        "table. gist: no recomputation, each activation as its smallest lossless encoding (bits "
        "of ReLU, bytes of max pooling, in place), at the least memory that this reaches; sparse "
        "storage and half precision, which Gist has too, are left out: the one depends on the "
        "data, the other is lossy. papers_share: what the paper measured with them (Table 4.3). "
        "headrace: overhead of its plan in the same memory"
    )


def allowed(graph: Graph, kinds: Collection[str]) -> Graph:
    """Return the graph with first implementations and those of some kinds."""
    operators = tuple(
        replace(
            each,
            implementations=tuple(
                way
                for index, way in enumerate(each.implementations)
                if not index or set(kinds) >= kinds_of(way)
            ),
        )
        for each in graph.operators
    )
    return replace(graph, operators=operators)


def kinds_of(way: Implementation) -> set[str]:
    """Return the kinds of an implementation other than the first, by its name."""
    found = {kind for kind, words in _WORDS.items() if set(words) & set(way.name.split())}
    assert found, way.name
    return found


def _overhead(steps: Steps, graph: Graph, budget: int, seconds: float) -> float | None:
    try:
        found = solve_schedule(graph, budget, ScheduleSearch, limits=SolveLimits(seconds=seconds))
    except BudgetError:
        return None
    return found.time_us / steps.plain_us - 1


def kinds_row(steps: Steps, share: float, seconds: float) -> dict[str, Any]:
    """Return the overhead of a step with one kind at a time, in a share of its plain run's memory.

    Parameters
    ----------
    seconds : for each search; a kind that the graph does not have is left out.
    """
    budget = int(share * steps.plain_bytes)
    graphs = {name: allowed(steps.graphs[FULL], kinds) for name, kinds in KINDS.items()}
    return {
        "network": steps.workload.name,
        "share": share,
        **{
            name: _overhead(steps, graph, budget, seconds)
            for name, graph in graphs.items()
            if name == "none" or graph != graphs["none"]
        },
    }


def gist_row(steps: Steps, seconds: float) -> dict[str, Any]:
    """Return the least memory without recomputation, and what headrace needs in it."""
    graph = allowed(steps.graphs[FULL], _GIST)
    once = tuple(replace(each, again=False) for each in graph.operators)
    graph = replace(graph, operators=once)
    least = steps.plain_bytes
    try:
        solve_schedule(
            graph, graph.resident_bytes, ScheduleSearch, limits=SolveLimits(seconds=seconds)
        )
    except BudgetError as error:
        least = error.least_bytes or least
    return {
        "network": steps.workload.name,
        "share": least / steps.plain_bytes,
        "papers_share": _PAPERS_GIST[steps.workload.name],
        "overhead": _overhead(steps, graph, least, seconds),
        "headrace": _overhead(steps, steps.graphs[FULL], least, seconds),
    }


def _program_row(steps: Steps) -> dict[str, Any]:
    """Return rows and variables of programs; the paper's are those after presolve (Table 4.5)."""
    row: dict[str, Any] = {
        "network": steps.workload.name,
        "forward": steps.graphs[NOOP].forward_count,
    }
    models: dict[str, LinearModel] = {
        "checkmate": checkmate_program(steps.graphs[NOOP], _STATISTICS_BYTES).model,
        "one_each": exact_program(steps.graphs[NOOP], _STATISTICS_BYTES).model,
        "all": exact_program(steps.graphs[FULL], _STATISTICS_BYTES).model,
    }
    for name, model in models.items():
        row[f"{name}_rows"] = model.rows
        row[f"{name}_variables"] = model.variables
    return row
