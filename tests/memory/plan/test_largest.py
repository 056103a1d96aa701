"""The largest number that fits, by few tries."""

from headrace.memory.plan.largest import (
    largest_below,
    largest_of_convex,
    largest_that_fits,
)


def test_every_limit_is_found() -> None:
    for limit in (*range(70), 1000, 12345):
        tried: list[int] = []

        def fits(number: int, limit: int = limit, tried: list[int] = tried) -> bool:
            tried.append(number)
            return number <= limit

        assert largest_that_fits(fits) == limit
        assert len(tried) <= 2 * max(limit, 1).bit_length() + 2


def test_a_number_a_little_below_is_found_by_few_tries() -> None:
    for high in (1, 2, 3, 10, 100, 12345, 114_224):
        for limit in {0, 1, high // 2, high * 9 // 10, high - 1} & set(range(high)):
            tried: list[int] = []

            def fits(number: int, limit: int = limit, tried: list[int] = tried) -> bool:
                tried.append(number)
                return number <= limit

            found = largest_below(fits, high)
            assert limit - max(1, limit // 100) < found <= limit or limit == found
            assert all(0 < number < high for number in tried)
            assert len(tried) <= 24


def test_the_largest_of_convex_peaks_is_found_by_few_of_them() -> None:
    """On the line through the peaks of two small batches it was a hundred times too large."""
    for activations in (1, 7, 33, 150, 800):

        def peak(samples: int, activations: int = activations) -> int:
            return max(1672 + samples // 8, 1254 + activations * samples, 900 + samples * 40)

        for budget in (1600, 1672, 1700, 2048, 8000):
            expected = max((n for n in range(1, 1025) if peak(n) <= budget), default=0)
            for guess in (1, 2, 64, 4096):
                tried: list[int] = []

                def counted(samples: int, tried: list[int] = tried) -> int:
                    tried.append(samples)
                    return peak(samples)

                found = largest_of_convex(counted, budget, none_bytes=1672, guess=guess, most=1024)
                assert found == expected
                assert len(tried) <= 20
