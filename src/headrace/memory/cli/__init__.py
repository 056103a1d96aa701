"""Commands of training within a memory budget."""

COMMANDS = {
    "memory": (
        "headrace.memory.cli.app:app",
        "Train within a memory budget: store, recompute, or compute in another way.",
    ),
}
"""Read without an import of the package; see `headrace.cli.app`."""

_RUN = ("native", "torch", "numpy", "ortools", "pyarrow")
_MEASURE = ("native", "torch", "numpy", "pyarrow")
NEEDS = {
    "measure": _MEASURE,
    "estimate": _MEASURE,
    "plan": ("native", "numpy", "ortools", "pyarrow"),
    "run": _RUN,
    "adapt": _RUN,
}
HELPS = {
    "measure": ("devices",),
    "estimate": ("timm", "transformers"),
    "run": ("devices", "cache", "compiler"),
}
"""Checks that a stage needs, and those that help it; see `headrace.doctor.needs`."""
