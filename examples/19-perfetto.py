"""The steps of an allreduce between two processes, on a time line for ui.perfetto.dev.

    python examples/19-perfetto.py

It writes trace.json: a process is a rank, a row is a lane, arrows lead from sends to receives.
docs/executor.md says what else can be traced: a testbed, the ranks of torchrun, another plan.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

COMMAND = "collectives trace --collective allreduce --size 1M --ranks 2 -o trace.json"


def main() -> None:
    """Trace, and print how many events the file has."""
    subprocess.run([sys.executable, "-m", "headrace", *COMMAND.split()], check=True)
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    phases = Counter(event["ph"] for event in events)
    rows = {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}
    print(f"trace.json: {phases['X']} slices in {len(rows)} rows, {phases['s']} arrows")


if __name__ == "__main__":
    main()
