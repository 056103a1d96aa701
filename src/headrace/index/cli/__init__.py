"""Commands of the learned index."""

COMMANDS = {
    "index": (
        "headrace.index.cli.app:app",
        "Keep ordered keys in memory, in a structure chosen by the workload.",
    ),
}
"""Read without an import of the package; see `headrace.cli.app`."""

NEEDS = {
    "measure": ("numpy", "pyarrow"),
    "plan": ("native", "numpy", "pyarrow"),
    "run": ("native", "numpy"),
    "adapt": ("native", "numpy"),
}
HELPS = {
    "adapt": ("prometheus-client",),
}
"""Checks that a stage needs, and those that help it; see `headrace.doctor.needs`."""
