import numpy as np
import pytest

from headrace.collectives.measure.fit.alpha_beta import Sample, fit_link
from headrace.collectives.measure.probes.probe import Manner
from headrace.errors import InputError

ALPHA, BETA, CALL = 45.0, 20_000.0, 120.0  # us, us/MB (400 Mbit/s), us
SEQUENCE, AT_ONCE = Manner.ONE_AFTER_ANOTHER, Manner.AT_ONCE


def samples(noise: float = 0.0, lead_us: float = 0.0, seed: int = 0) -> list[Sample]:
    random = np.random.default_rng(seed)
    plan = [(SEQUENCE, n, 8) for n in (4, 20) for _ in range(4)]
    plan += [(SEQUENCE, 4, 16_384)] * 2
    plan += [(AT_ONCE, 8, size) for size in (62_500, 250_000) for _ in range(2)]
    result = []
    for manner, n, size in plan:
        hops = 2 * (n if manner is SEQUENCE else 1)
        time_us = CALL + hops * ALPHA + BETA * n * size / 1e6 + (lead_us if size > 8 else 0.0)
        result.append(
            Sample(manner, n, size, time_us * float(np.exp(noise * random.standard_normal())))
        )
    return result


def test_exact_times_give_the_exact_costs() -> None:
    fit = fit_link(samples())
    assert fit.alpha_us == pytest.approx(ALPHA, rel=1e-6)
    assert fit.beta_us_per_mb == pytest.approx(BETA, rel=1e-6)
    assert fit.call_us == pytest.approx(CALL, rel=1e-5)
    assert fit.alpha_variance == pytest.approx(0, abs=1e-6)
    assert fit.at_once_us(2e6) == pytest.approx(CALL + 2 * ALPHA + 2 * BETA)


def test_a_burst_that_passes_a_shaper_freely_does_not_make_the_link_look_faster() -> None:
    fit = fit_link(samples(lead_us=-0.064 * BETA))
    assert fit.beta_us_per_mb == pytest.approx(BETA, rel=0.01)
    assert fit.lead_us == pytest.approx(-0.064 * BETA, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_noise_moves_the_costs_little_and_shows_in_the_variance(seed: int) -> None:
    fit = fit_link(samples(noise=0.03, seed=seed))
    assert fit.alpha_us == pytest.approx(ALPHA, rel=0.12)
    assert fit.beta_us_per_mb == pytest.approx(BETA, rel=0.08)
    assert fit.alpha_variance > 0
    assert fit.beta_variance > 0
    assert 0.001 < fit.residual < 0.1


def test_small_transfers_that_were_held_up_do_not_make_the_link_look_faster() -> None:
    late = [
        s._replace(time_us=s.time_us + 8000) if s.chunk_bytes == 62_500 else s for s in samples()
    ]
    fit = fit_link(late)
    assert fit.beta_us_per_mb == pytest.approx(BETA, rel=0.05)
    assert -100 < fit.lead_us <= 0


def test_one_wild_sample_counts_little() -> None:
    wild = samples()
    wild[-1] = wild[-1]._replace(time_us=wild[-1].time_us * 3)
    assert fit_link(wild).beta_us_per_mb == pytest.approx(BETA, rel=0.1)


def test_costs_are_never_negative() -> None:
    backwards = [Sample(AT_ONCE, 8, 2000, 500.0), Sample(AT_ONCE, 8, 100_000, 300.0)]
    fit = fit_link(backwards)
    assert fit.alpha_us >= 0
    assert fit.beta_us_per_mb > 0


def test_samples_of_one_size_are_refused() -> None:
    with pytest.raises(InputError, match="at least two sizes"):
        fit_link([Sample(AT_ONCE, 8, 1000, 100.0)] * 3)
