"""Link rates: their notation, and the settings of the kernel's token bucket for one."""

import re
from contextlib import suppress
from dataclasses import dataclass

from headrace.errors import InputError, TestbedError
from headrace.units import parse_bandwidth

MIN_BYTES_PER_S = 12_500  # 100 kbit/s: below it a single packet takes over 0.1 s
MAX_BYTES_PER_S = 12_500_000_000

_ALLOWED = (
    "a number with a unit such as Mbit/s or MB/s ('400Mbit/s'), or a whole number of bytes a "
    "second, from 100 kbit/s to 100 Gbit/s"
)

FRAME_BYTES = 1514
"""A full Ethernet frame as `tbf` counts it: an MTU of 1500 and 14 bytes of header."""

SEGMENT_BYTES = 1448
"""TCP payload of a full frame: MTU less 20 bytes IP, 20 TCP and 12 of timestamps."""

PAYLOAD_SHARE = SEGMENT_BYTES / FRAME_BYTES
"""Share of a link's rate that TCP carries as payload: 95.6 of 100 Mbit/s."""

PAYLOAD_SHARE_V6 = (SEGMENT_BYTES - 20) / FRAME_BYTES
"""The same over IPv6, whose header is 20 bytes longer: 94.3."""

_JOINED_S = 128e-6
_SLACK_S = 28e-6
_MIN_SLACK_BYTES = 872
_SEGMENTS = (2, 44)  # at most a super-packet of 64 KiB
_QUEUE_S = 10e-3
_MIN_QUEUE_BYTES = 64_000


def parse_rate(rate: object) -> int:
    """Return a rate in bytes a second.

    Raises
    ------
    TestbedError : naming what was found and what is allowed.
    """
    value: float | None = None
    if isinstance(rate, int) and not isinstance(rate, bool):
        value = rate
    elif isinstance(rate, str):
        if re.fullmatch(r"\d+", rate.strip()):
            value = int(rate)
        else:
            with suppress(InputError):
                value = parse_bandwidth(rate)
    if value is None or not MIN_BYTES_PER_S <= value <= MAX_BYTES_PER_S:
        state = "is missing" if rate is None else f"is {rate!r}"
        raise TestbedError(f"rate {state}, needs {_ALLOWED}")
    return round(value)


def format_rate(bytes_per_s: float) -> str:
    """Return a rate for display, such as "400 Mbit/s"."""
    bits = bytes_per_s * 8
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits >= size:
            return f"{bits / size:.4g} {unit}"
    return f"{bits / 1e3:.4g} kbit/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBucket:
    """Settings of one `tbf`: bucket and queue, in bytes on the wire."""

    bytes_per_s: int
    burst_bytes: int
    queue_bytes: int

    def to_tc(self) -> str:
        """Return the arguments of ``tc qdisc``."""
        return (
            f"tbf rate {self.bytes_per_s * 8}bit burst {self.burst_bytes} limit {self.queue_bytes}"
        )


def host_segments(bytes_per_s: int) -> int:
    """Return the number of frames that a host at this rate may join into one packet (GSO).

    Measured: left alone, TCP hands `tbf` packets of 64 KiB that it has to cut into frames, and
    one 400 Mbit/s stream keeps a whole core busy (softirq 90%) and reaches 315 to 370 Mbit/s.
    So a host joins fewer, which every bucket on the path holds as a whole. Their number sets the
    cost of the emulation when all hosts send: four of them, each to the next, on two processors,
    got 0.79 of 400 Mbit/s and of 1 Gbit/s, with 2% of the processors' time left, when they joined
    the frames of 64 us; with 96 us 0.91 and 0.94 (15 and 20% left), with 128 us 0.97 (58 and 40%).
    In return a message of 64 KiB after a pause comes a little early (see `token_bucket`): 5% at
    400 Mbit/s, 11% at 1 Gbit/s. With 256 us it would be 20%.
    """
    least, most = _SEGMENTS
    return max(least, min(most, int(bytes_per_s * _JOINED_S) // FRAME_BYTES))


def token_bucket(bytes_per_s: int, *, arriving_segments: int = 1) -> TokenBucket:
    """Return the token bucket for a link.

    `arriving_segments` is the largest joined packet that can arrive there.

    The burst is free: after a pause that many bytes go out at once, so that a 64 KiB message takes
    43% less than its time with the customary 32 KiB. It also compensates for a timer that fires
    late: with one frame, 10% of 100 Mbit/s are lost. Between the two, on a busy machine: with
    3000, 4000, 4500 and 6000 bytes at 100 Mbit/s, 64 KiB came 3.5, 5.1, 6 and 8% early, and
    full-duplex streams got 88, 91, 91 and 92 Mbit/s of payload. Hence a joined packet and 28 us,
    at least 872 bytes: 3900 bytes at 100 Mbit/s, 7456 at 400. The kernel cuts a joined packet
    larger than the bucket into frames without loss; one that only just fits would wait for a full
    bucket each time and lose rate, so the bucket grows.

    The queue holds 10 ms: two streams share a link without a retransmission timeout, and an
    echo behind a bulk transfer waits no longer than behind a shallow switch. (5 ms dropped three
    times as many packets; 20 ms gained nothing.)
    """
    slack = max(_MIN_SLACK_BYTES, int(bytes_per_s * _SLACK_S))
    burst = host_segments(bytes_per_s) * FRAME_BYTES + slack
    if arriving_segments * FRAME_BYTES <= burst:
        burst = max(burst, arriving_segments * FRAME_BYTES + slack)
    queue = max(_MIN_QUEUE_BYTES, int(bytes_per_s * _QUEUE_S))
    return TokenBucket(bytes_per_s=bytes_per_s, burst_bytes=burst, queue_bytes=queue)
