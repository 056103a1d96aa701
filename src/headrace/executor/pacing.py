"""Rate limits of the transport, for testbeds without traffic shaping by the kernel."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.executor.connect.addresses import host_of
from headrace.executor.executor import Executor
from headrace.settings import Settings
from headrace.testbed.loopback import pace_rate


def pace(executor: Executor, addresses: Sequence[str], settings: Settings) -> None:
    """Limit the rate of every connection, on a testbed without shaped links."""
    if settings.pace is None:
        return
    table: Mapping[str, Any] = json.loads(Path(settings.pace).read_text())
    ips = [host_of(address) for address in addresses]
    for peer, ip in enumerate(ips):
        if peer != executor.rank and ip != ips[executor.rank]:
            executor.set_pacing(peer, round(pace_rate(table, ips[executor.rank], ip)))
