"""Commands of training within a memory budget."""

COMMANDS = {
    "memory": (
        "headrace.memory.cli.app:app",
        "Train within a memory budget: store, recompute, or compute in another way.",
    ),
}
"""Read without an import of the package; see `headrace.cli.app`."""

NEEDS = {
    "measure": ("native", "torch", "numpy", "pyarrow"),
    "plan": ("native", "numpy", "ortools", "pyarrow"),
    "run": ("native", "torch", "numpy", "ortools", "pyarrow"),
    "adapt": ("native", "torch", "numpy", "ortools", "pyarrow"),
}
HELPS = {
    "measure": ("devices",),
    "run": ("devices", "cache", "compiler"),
}
"""Checks that a stage needs, and those that help it; see `headrace.doctor.needs`."""
