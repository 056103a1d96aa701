"""Cache of measured costs and of plans, in the folder of what later jobs can use again.

Costs are kept by device and by what else changes them: processor, torch, its choice of algorithms.
Plans are kept by the step (model, shapes, implementations, what is resident), device, budget,
effort, seed and watts. Files are replaced as a whole; one that cannot be read is logged and made
again.
"""

import platform
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headrace
import headrace.artifact as artifact_io
from headrace.artifact import Artifact, columns_of
from headrace.cache import cache_key, keep_newest, read_cached, write_cached
from headrace.errors import ArtifactError
from headrace.fields import Field
from headrace.memory.measure.timing import Cost, device_name
from headrace.memory.plan.effort import SolveEffort
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.step_match import require_match
from headrace.memory.profile import MemoryProfile
from headrace.settings import Settings

COSTS_KIND = "memory-costs"
_COSTS_SCHEMA = 1
_COSTS, _PLAN = ".costs", ".plan"
_COLUMNS = {"time_us": np.float64, "workspace_bytes": np.int64}
_MOST_COSTS = 50_000
"""Costs in a file, some 10 MB; the oldest go first."""
_MOST_PLANS = 128
MEASUREMENT = 3
"""Revision of what is measured, part of every key: costs and plans of another one are not used.
Revision 1 measured workspaces without the memory of results larger than traced, revision 2 those of
float32 operators under autocast in 16 bits: too small ones."""

_CONSEQUENCE = "the next job will do the work again"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanKey:
    """Identity of a plan.

    Attributes
    ----------
    step : its profile without costs (`headrace.memory.measure.step.unmeasured_profile`).
    conditions : of its costs; see `conditions`.
    """

    step: MemoryProfile
    conditions: Mapping[str, str]
    budget_bytes: int
    effort: SolveEffort
    seed: int
    watts: Mapping[str, float] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of a plan with this key."""
        watts = {} if self.watts is None else {"watts": dict(self.watts)}
        return {"effort": str(self.effort), "seed": self.seed, **watts}

    @property
    def name(self) -> str:
        """Name of its file."""
        step = replace(self.step, model="")  # a name for people
        return cache_key([step.digest, dict(self.conditions), self.budget_bytes, self.settings])


class StepCache:
    """The cache in one folder.

    Parameters
    ----------
    folder : made at the first use. None: nothing is found, and nothing is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @classmethod
    def of_user(cls) -> "StepCache":
        """Return the cache in the folder of the settings (HEADRACE_CACHE)."""
        folder = Settings.from_environment().cache_folder
        return cls(folder and folder / "memory")

    def costs(self, measured_under: Mapping[str, str]) -> dict[str, Cost]:
        """Return the costs that were measured under these conditions."""
        if self._folder is None:
            return {}
        return (
            read_cached(
                self._costs_path(self._folder, measured_under), _load_costs, _warning("costs")
            )
            or {}
        )

    def save_costs(self, measured_under: Mapping[str, str], costs: Mapping[str, Cost]) -> None:
        """Add costs to those that are kept. A failure is logged as a warning."""
        if self._folder is None:
            return
        costs_by_name = {
            **self.costs(measured_under),
            **costs,
        }  # with those that another process has added
        newest = dict(islice(costs_by_name.items(), max(len(costs_by_name) - _MOST_COSTS, 0), None))
        rows = [(cost.time_us, cost.workspace_bytes) for cost in newest.values()]
        artifact = Artifact(
            kind=COSTS_KIND,
            schema=_COSTS_SCHEMA,
            head={"conditions": dict(measured_under), "operators": list(newest)},
            tables={"costs": columns_of(rows, _COLUMNS)},
        )
        write_cached(self._costs_path(self._folder, measured_under), artifact, _CONSEQUENCE)

    def find_plan(self, key: PlanKey) -> MemoryPlan | None:
        """Return the plan with this key, proven again; None if there is none."""
        if self._folder is None:
            return None

        def load(path: Path) -> MemoryPlan:
            plan = MemoryPlan.load(path)
            require_match(plan, key.step, str(path))
            settings = {name: plan.settings.get(name) for name in ("effort", "seed", "watts")}
            if (plan.budget_bytes, settings) != (key.budget_bytes, {"watts": None, **key.settings}):
                raise ArtifactError(f"{path}: is for another budget, effort, seed or watts")
            plan.verify()
            return plan

        return read_cached(self._plan_path(self._folder, key), load, _warning("plans"))

    def save_plan(self, key: PlanKey, plan: MemoryPlan) -> None:
        """Keep a plan, and delete the oldest. A failure is logged as a warning."""
        if self._folder is None:
            return
        path = self._plan_path(self._folder, key)
        write_cached(path, plan.to_artifact(), _CONSEQUENCE)
        keep_newest(path.parent, _PLAN, _MOST_PLANS)

    def _costs_path(self, folder: Path, measured_under: Mapping[str, str]) -> Path:
        return folder / "costs" / f"{cache_key(dict(measured_under))}{_COSTS}"

    def _plan_path(self, folder: Path, key: PlanKey) -> Path:
        return folder / "plans" / f"{key.name}{_PLAN}"


@contextmanager
def cached_costs(
    cache: StepCache, measured_under: Mapping[str, str], costs: dict[str, Cost]
) -> Generator[None]:
    """Add to `costs` what was measured under these conditions, and keep what the block adds."""
    costs.update({**cache.costs(measured_under), **costs})
    before = len(costs)
    try:
        yield
    finally:
        if len(costs) > before:
            cache.save_costs(measured_under, costs)


def conditions(device: torch.device) -> dict[str, str]:
    """Return the conditions of measured costs, beside operator and arguments."""
    backends: Any = torch.backends
    shared = {
        "headrace": headrace.__version__,
        "measurement": str(MEASUREMENT),
        "torch": torch.__version__,
        "device": device_name(device),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
    }
    if device.type == "cpu":
        mkldnn = backends.mkldnn
        own = {"processor": _processor(), "mkldnn": str(mkldnn.enabled)}
        return {**shared, **own, "float32": _precisions(mkldnn.matmul, mkldnn.conv, mkldnn.rnn)}
    cudnn = backends.cudnn
    switches = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic)
    own = {"cudnn": " ".join(map(str, switches))}
    return {**shared, **own, "float32": _precisions(backends.cuda.matmul, cudnn.conv, cudnn.rnn)}


def _precisions(*operators: Any) -> str:
    """Return the types that float32 operands of kinds of operators are rounded to.

    Torch's older functions of it raise an error once it was set by these attributes.
    """
    return " ".join(str(operator.fp32_precision) for operator in operators)


def _processor() -> str:
    """Return the model of the CPU, or at least its architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _load_costs(path: Path) -> dict[str, Cost]:
    artifact = artifact_io.load(path, COSTS_KIND, _COSTS_SCHEMA)
    source = str(path)
    names = [
        name.text() for name in Field(artifact.head, source, ArtifactError).at("operators").items()
    ]
    table = artifact.numbers("costs", _COLUMNS, source)
    times, sizes = (table[name] for name in _COLUMNS)
    if len(names) != len(times):
        raise ArtifactError(f"{source}: 'operators' has {len(names)} names, needs {len(times)}")
    if not (np.isfinite(times).all() and (times >= 0).all() and (sizes >= 0).all()):
        raise ArtifactError(f"{source}: table 'costs' has figures below 0, or no numbers")
    rows = zip(names, times.tolist(), sizes.tolist(), strict=True)
    return {name: Cost(time_us, int(nbytes)) for name, time_us, nbytes in rows}


def _warning(what: str) -> str:
    return f"ignored a file of {what} in the cache, which is made again"
