"""Budgets as users write them."""

import pytest

from headrace.memory.errors import BudgetError
from headrace.memory.plan.make import parse_budget

WHOLE = 80 << 30


@pytest.mark.parametrize(
    ("budget", "nbytes"),
    [
        (1, 1),
        (6 << 30, 6 << 30),
        ("123", 123),
        ("2.0", 2),
        ("7B", 7),
        *((f"3{unit}", 3 << 10 * power) for power, unit in enumerate("KMGT", 1)),
        *((f"3{unit}iB", 3 << 10 * power) for power, unit in enumerate("KMGT", 1)),
        *((f"3{unit}B", 3 * 1000**power) for power, unit in enumerate("KMGT", 1)),
        (" 1.5 GiB ", 3 << 29),
        ("0.1KB", 100),
        ("80%", WHOLE * 4 // 5),
        (" 12.5 % ", WHOLE // 8),
        ("100%", WHOLE),
    ],
)
def test_units_and_shares(budget: int | str, nbytes: int) -> None:
    assert parse_budget(budget, WHOLE) == nbytes


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("1.5", "is '1.5', needs whole bytes, or a unit such as GiB"),
        ("12.50 B", "needs whole bytes"),
        ("", "needs a number and a unit"),
        ("lots", "needs a number and a unit"),
        ("GiB", "needs a number and a unit"),
        ("-1GiB", "needs a number and a unit"),
        ("1e9", "needs a number and a unit"),
        ("1,5GiB", "needs a number and a unit"),
        ("1.2.3MB", "needs a number and a unit"),
        ("6gib", "needs a number and a unit"),
        ("nan", "needs a number and a unit"),
        ("%", "needs a number and a unit"),
        ("-5%", "needs a number and a unit"),
        ("0%", "needs more than 0% and at most 100%"),
        ("101%", "needs more than 0% and at most 100%"),
        ("0.000000000001%", "budget is 0 bytes, needs more than 0"),
        ("0GiB", "budget is 0 bytes, needs more than 0"),
        (0, "budget is 0 bytes, needs more than 0"),
        (-1, "needs more than 0"),
        ("9000T", "needs at most 1024 TiB"),
        (1 << 51, "at most 1024 TiB"),
        (True, "needs bytes or a text such as 6GiB"),
        (1.5, "needs bytes or a text such as 6GiB"),
        (None, "needs bytes or a text such as 6GiB"),
    ],
)
def test_all_else_is_refused_with_the_remedy(budget: int | str, message: str) -> None:
    """A bare "1.5" once was 2 bytes, of which no search can make anything."""
    with pytest.raises(BudgetError, match=message):
        parse_budget(budget, WHOLE)


def test_a_share_needs_the_memory_of_the_device() -> None:
    with pytest.raises(BudgetError, match="needs bytes: the device's memory is unknown"):
        parse_budget("80%")
