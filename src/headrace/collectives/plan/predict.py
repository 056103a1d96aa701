"""Predicted times of collectives on one network: a plan book's plans, or the best templates."""

from dataclasses import dataclass, field
from pathlib import Path

from headrace.collectives.demand import Collective
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.book import PlanBook
from headrace.collectives.plan.plan import Plan
from headrace.collectives.plan.portfolio import plan_collective, predict_us
from headrace.errors import InputError
from headrace.facades import offered_by
from headrace.kinds import function_of, load_artifact
from headrace.topology import BYTES_PER_MB, Topology
from headrace.topology.profile import Profile

_SOURCES = ("plan-book", "profile", "topology")


@offered_by("headrace.collectives")
@dataclass(frozen=True, kw_only=True, eq=False)
class Predictor:
    """Times of collectives as plans predict them.

    Attributes
    ----------
    topology : the network that plans are made for.
    book : its plans; None: the best template for every size, by powers of four.
    """

    topology: Topology
    book: PlanBook | None = None
    _plans: dict[tuple[str, int], Plan] = field(default_factory=dict[tuple[str, int], Plan])

    @property
    def slowest_bytes_per_s(self) -> float:
        """Return the rate of the slowest link or shared capacity.

        Raises
        ------
        InputError : there is no link.
        """
        betas = [link.beta_us_per_mb for link in self.topology.links]
        betas += [shared.beta_us_per_mb for shared in self.topology.shared]
        if not betas:
            raise InputError(
                f"topology {self.topology.name!r} has no link, needs two ranks or more"
            )
        return 1e6 * BYTES_PER_MB / max(betas)

    def predict_us(self, collective: str, total_bytes: int) -> float:
        """Return the time of a collective of `total_bytes`, see `Demand.chunk_bytes`.

        Raises
        ------
        ProgramError : if the book has no plan for it.
        """
        plan = self._plan(Collective(collective), total_bytes)
        return predict_us(plan.program, self.topology, total_bytes, plan.model)

    def _plan(self, collective: Collective, total_bytes: int) -> Plan:
        if self.book is not None:
            plan = self.book.choose(collective, total_bytes)
            if plan is None:
                raise ProgramError(
                    f"the plan book has no plan for {collective.value}, needs one; make the book "
                    f"with headrace collectives plan, without --collective"
                )
            return plan
        size = 4 ** max(5, round(total_bytes.bit_length() / 2))
        key = (collective.value, size)
        if key not in self._plans:
            self._plans[key] = plan_collective(self.topology, collective, size)
        return self._plans[key]


def predictor_of(source: "Topology | Profile | PlanBook | Path") -> Predictor:
    """Return the predictions of a network, or of a file that holds a plan book or a network.

    Raises
    ------
    ArtifactError : if the file holds neither.
    """
    if isinstance(source, Path):
        artifact = load_artifact(source)
        load = function_of(
            artifact,
            str(source),
            lambda kind: kind.load if kind.name in _SOURCES else None,
            "needs {}",
        )
        return predictor_of(load(artifact, str(source)))
    topology = source if isinstance(source, Topology) else source.topology
    return Predictor(topology=topology, book=source if isinstance(source, PlanBook) else None)
