import numpy as np
import pytest

from headrace.collectives.measure.embed.distances import check_distances, pair_distances
from headrace.errors import InputError


def matrix(n: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(1, 9, (n, n))


@pytest.mark.parametrize("what", ["latency_us", "bandwidth"])
def test_distances_are_symmetric_and_do_not_look_at_the_diagonal(what: str) -> None:
    values = matrix()
    found, known = pair_distances(**{what: values})
    np.fill_diagonal(values, np.nan)
    again, _ = pair_distances(**{what: values})
    assert np.array_equal(found, again)
    assert np.array_equal(found, found.T)
    assert (np.diag(found) == 0).all()
    assert known.sum() == 20
    assert (found[known] > 0).all()


def test_a_factor_of_two_is_the_same_on_the_logarithmic_scale_everywhere() -> None:
    latency = np.array([[0, 1, 2, 4], [1, 0, 8, 16], [2, 8, 0, 32], [4, 16, 32, 0]], dtype=float)
    found, _ = pair_distances(latency_us=latency)
    steps = [found[0, 2] - found[0, 1], found[1, 3] - found[1, 2], found[2, 3] - found[1, 3]]
    # the very closest pairs count as equal, so the first step is a little shorter
    assert steps[1] == pytest.approx(np.log(2))
    assert steps[2] == pytest.approx(np.log(2))
    assert 0.8 * np.log(2) < steps[0] <= np.log(2)


def test_the_unit_plays_no_part_on_the_logarithmic_scale() -> None:
    values = matrix()
    ours, _ = pair_distances(bandwidth=values)
    theirs, _ = pair_distances(bandwidth=values * 125_000)
    assert ours == pytest.approx(theirs)


def test_a_pair_known_one_way_has_that_distance_and_an_unknown_one_the_way_round() -> None:
    distances = np.array([[0, 1, 9], [3, 0, 2], [9, 2, 0]], dtype=float)
    known = np.array([[1, 0, 0], [1, 1, 1], [0, 1, 1]], dtype=bool)
    mean, weight = check_distances(distances, known)
    assert mean.tolist() == [[0, 3, 5], [3, 0, 2], [5, 2, 0]]
    assert weight.tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_what_is_no_distance_is_named(bad: float) -> None:
    values = matrix(3)
    values[2, 0] = bad
    for name in ("latency_us", "bandwidth"):
        with pytest.raises(InputError, match=rf"{name}\[2, 0\] is .*, needs a finite number above"):
            pair_distances(**{name: values})
    with pytest.raises(InputError, match=r"distances\[2, 0\] is .*, needs a finite number of at"):
        check_distances(values)
    known = np.ones((3, 3), dtype=bool)
    known[2, 0] = False
    pair_distances(latency_us=values, known=known)
    check_distances(values, known)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"latency_us has shape \(\), needs \(hosts, hosts\)"),
        ({"latency_us": np.ones((2, 3))}, r"latency_us has shape \(2, 3\), needs \(hosts, hosts\)"),
        ({"latency_us": [["a"]]}, "latency_us is not a table of numbers"),
        (
            {"latency_us": np.ones((2, 2)), "known": np.ones(2, dtype=bool)},
            r"known has shape \(2,\), needs \(2, 2\)",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_named(arguments, message: str) -> None:
    with pytest.raises(InputError, match=message):
        pair_distances(**arguments)


def test_hosts_that_nothing_connects_are_named() -> None:
    known = np.zeros((4, 4), dtype=bool)
    known[0, 1] = known[2, 3] = True
    with pytest.raises(InputError, match="connect hosts 0 and 2"):
        check_distances(np.ones((4, 4)), known)
