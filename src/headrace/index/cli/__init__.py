"""Commands of the learned index."""

COMMANDS = {
    "index": (
        "headrace.index.cli.app:app",
        "Keep ordered keys in memory, in a structure chosen by the workload.",
    ),
}
"""Read without an import of the package; see `headrace.cli.app`."""
