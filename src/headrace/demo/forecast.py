"""A plan book's predictions for a job's allreduces, to compare with measurements."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import PlanBook
from headrace.collectives.plan.portfolio import rescore


@dataclass(frozen=True, slots=True, kw_only=True)
class AllreduceForecast:
    """One allreduce: the generator of its plan, its simulated time, and the lower bound."""

    total_bytes: int
    generator: str
    predicted_us: float
    bound_us: float

    @property
    def gap(self) -> float:
        """Optimality gap of the prediction: 0.05 is 5% above the bound."""
        return self.predicted_us / self.bound_us - 1 if self.bound_us else 0.0


def forecast(book: PlanBook, sizes: Sequence[int]) -> list[AllreduceForecast]:
    """Return the forecast of an allreduce of every size in bytes; `book` has to have plans."""
    return [_forecast(book, total_bytes) for total_bytes in sizes]


def _forecast(book: PlanBook, total_bytes: int) -> AllreduceForecast:
    plan = book.choose(Collective.ALLREDUCE, total_bytes)
    assert plan is not None, "the demo plans allreduces at every size"
    # a plan was scored at a size of its range, this is another
    scored = rescore(plan, book.topology, total_bytes)
    return AllreduceForecast(
        total_bytes=total_bytes,
        generator=scored.generator,
        predicted_us=scored.predicted_us,
        bound_us=scored.bound.total_us,
    )
