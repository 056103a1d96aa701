"""Commands of training within a memory budget."""

COMMANDS = {
    "memory": (
        "headrace.memory.cli.app:app",
        "Train within a memory budget: store, recompute, or compute in another way.",
    ),
}
"""Read without an import of the package; see `headrace.cli.app`."""
