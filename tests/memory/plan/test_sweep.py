"""Plans of several budgets: what they share."""

from headrace.memory.errors import BudgetError
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.sweep import with_common_least
from headrace.memory.schedule import Schedule, plain_schedule
from tests.memory.graphs import chain

SCHEDULES = (plain_schedule(chain(3)), plain_schedule(chain(4)), plain_schedule(chain(5)))


def failed(least_bytes: int, schedule: Schedule) -> BudgetError:
    return BudgetError(f"least {least_bytes}", least_bytes=least_bytes, schedule=schedule)


def test_errors_name_the_least_of_all_budgets_and_plan_by_it_where_it_fits() -> None:
    """Of budgets without a schedule, each error named the least of its own search alone: 90 for one
    of 80, where the search of another had found a schedule in 75."""
    planned: list[tuple[int, tuple[Schedule, ...]]] = []

    def plan_of(budget: int, starts: tuple[Schedule, ...]) -> MemoryPlan | BudgetError:
        planned.append((budget, starts))
        return BudgetError("planned")

    first, second, third = SCHEDULES
    interrupted = BudgetError("interrupted before this budget's turn")
    smallest = failed(75, third)
    results = {80: failed(90, first), 60: failed(85, second), 50: smallest, 40: interrupted}
    common = with_common_least(results, plan_of)
    assert planned == [(80, (third,))]
    assert str(common[80]) == "planned"
    error = common[60]
    assert isinstance(error, BudgetError)
    assert (error.least_bytes, error.schedule) == (75, third)
    assert "of 60 B: the least with a known schedule, by the searches of all budgets" in str(error)
    assert common[50] is smallest
    assert common[40] is interrupted
