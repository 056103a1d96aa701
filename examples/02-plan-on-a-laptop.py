"""Plan for a cluster that is not at hand: no ranks, no network, no torch.

    python examples/02-plan-on-a-laptop.py cluster.book
    headrace show cluster.book
    headrace verify cluster.book

Two racks of four hosts: 10 Gbit/s each, behind uplinks of 20 Gbit/s, half of what their hosts could
send. The ranks were placed in an unlucky order, one rack after the other in turn.
"""

import sys

from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import build_book
from headrace.topology.presets import racks

GBIT = 125e6  # bytes a second


def main(path: str) -> None:
    """Write a plan book to `path`."""
    topology = racks(
        (4, 4),
        host_bytes_per_s=10 * GBIT,
        uplink_bytes_per_s=20 * GBIT,
        alpha_us=30.0,
        rank_order=(0, 4, 1, 5, 2, 6, 3, 7),
    )
    book = build_book(
        topology,
        collectives=[Collective.ALLREDUCE, Collective.BROADCAST],
        sizes=[4 << 10, 256 << 10, 16 << 20],
        progress=lambda what, fraction: print(f"{fraction:4.0%}  {what}"),
    )
    book.save(path)

    print(f"{'allreduce of':>14}  {'best plan':18} {'predicted':>12} {'lower bound':>12}  gap")
    for nbytes in (4 << 10, 256 << 10, 16 << 20):
        plan = book.choose(Collective.ALLREDUCE, nbytes)
        assert plan is not None
        print(
            f"{nbytes:>12} B  {plan.generator:18} {plan.predicted_us:>9.0f} us "
            f"{plan.bound.total_us:>9.0f} us  {plan.gap:.0%}"
        )
    # every program was proven when it was made; the other candidates are on record, too
    for candidate in plan.candidates:
        if candidate.predicted_us is not None:
            print(
                f"    {candidate.generator} in {candidate.chunks}: {candidate.predicted_us:.0f} us"
            )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cluster.book")
