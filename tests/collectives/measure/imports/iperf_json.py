"""Output of ``iperf3 -J``, composed from the format's documentation."""

import json
from pathlib import Path
from typing import Any

MBIT = 1e6


def result(
    local: str,
    remote: str,
    mbit: float,
    *,
    rtt_us: int | None = 120,
    reverse: bool = False,
    bidir_mbit: float | None = None,
    by_server: bool = False,
    at: int = 1_700_000_000,
) -> dict[str, Any]:
    """One TCP run, as the end `local` reports it; it sent unless `reverse` (or `by_server`)."""
    sends = reverse == by_server
    sender: dict[str, Any] = {
        "socket": 5,
        "start": 0,
        "end": 10.0,
        "seconds": 10.0,
        "bytes": int(mbit * MBIT / 8 * 10),
        "bits_per_second": mbit * MBIT * 1.01,
        "retransmits": 3,
        "sender": sends,
    }
    if rtt_us is not None:
        known = rtt_us if sends else 0
        sender |= {
            "max_snd_cwnd": 99,
            "max_rtt": 9 * known,
            "min_rtt": known,
            "mean_rtt": 3 * known,
        }
    receiver = {**sender, "bits_per_second": mbit * MBIT}
    end: dict[str, Any] = {
        "streams": [{"sender": sender, "receiver": receiver}],
        "sum_sent": {"seconds": 10.0, "bits_per_second": mbit * MBIT * 1.01, "sender": sends},
        "sum_received": {"seconds": 10.0, "bits_per_second": mbit * MBIT, "sender": sends},
        "cpu_utilization_percent": {"host_total": 3.0, "remote_total": 7.0},
        "sender_tcp_congestion": "cubic",
    }
    if bidir_mbit is not None:
        back = {"seconds": 10.0, "bits_per_second": bidir_mbit * MBIT, "sender": not sends}
        end |= {"sum_sent_bidir_reverse": back, "sum_received_bidir_reverse": back}
    other = (
        {"accepted_connection": {"host": remote, "port": 40000}}
        if by_server
        else {"connecting_to": {"host": remote, "port": 5201}}
    )
    return {
        "start": {
            "connected": [
                {
                    "socket": 5,
                    "local_host": local,
                    "local_port": 43210,
                    "remote_host": remote,
                    "remote_port": 5201,
                }
            ],
            "version": "iperf 3.12",
            "timestamp": {"time": "Tue, 14 Nov 2023 22:13:20 GMT", "timesecs": at},
            **other,
            "cookie": "abc",
            "tcp_mss_default": 1448,
            "test_start": {
                "protocol": "TCP",
                "num_streams": 1,
                "blksize": 131072,
                "omit": 0,
                "duration": 10,
                "bytes": 0,
                "blocks": 0,
                "reverse": int(reverse),
                "tos": 0,
                "bidir": int(bidir_mbit is not None),
            },
        },
        "intervals": [],
        "end": end,
    }


def write(folder: Path, found: object, name: str = "run.json") -> Path:
    """Write one result to a file."""
    path = folder / name
    path.write_text(json.dumps(found))
    return path
