"""Multicasts reversed: how tests make reductions, with times, for `concatenated` and `realize`."""

from headrace.collectives.plan.ir.sends import Sends


def reversed_sends(sends: Sends) -> Sends:
    """Return `sends` reversed: a multicast from one rank becomes a reduction to it.

    An allgather on the transposed topology becomes a reduce_scatter. A message over [a, b] gets
    [``end - b``, ``end - a``], with `end` the end of all; one of unknown arrival takes no time.
    """
    start_us, arrive_us = sends.start_us, sends.arrive_us
    if len(start_us):
        ends = arrive_us if len(arrive_us) else start_us
        last_us = float(ends.max())
        arrive_us = (last_us - start_us)[::-1].copy() if len(arrive_us) else arrive_us
        start_us = (last_us - ends)[::-1].copy()
    last = int(sends.message[-1]) if len(sends.message) else 0
    return Sends.of(
        sends.chunk[::-1],
        sends.dst[::-1],
        sends.src[::-1],
        reduce=True,
        message=last - sends.message[::-1],
        start_us=start_us,
        arrive_us=arrive_us,
    )
