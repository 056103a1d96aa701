"""The largest number that fits, by few tries."""

from headrace.memory.plan.largest import largest_that_fits


def test_every_limit_is_found() -> None:
    for limit in (*range(70), 1000, 12345):
        for most in (None, limit - 1, limit, limit + 1, 3):
            tried: list[int] = []

            def fits(number: int, limit: int = limit, tried: list[int] = tried) -> bool:
                tried.append(number)
                return number <= limit

            wanted = limit if most is None else max(min(limit, most), 0)
            assert largest_that_fits(fits, most) == wanted
            assert len(tried) <= 2 * max(limit, 1).bit_length() + 2
            assert all(most is None or each <= max(most, 1) for each in tried)
