"""Commands of embeddings."""

COMMANDS = {
    "embeddings": (
        "headrace.embeddings.cli.app:app",
        "Train recommendation models without waiting for embedding rows: find out what moves.",
    ),
}
"""Read without an import of the package; see `headrace.cli.app`."""

_RUN = ("native", "torch", "numpy", "scipy", "pyarrow", "network", "open-files")
NEEDS = {
    "measure": ("native", "numpy", "pyarrow"),
    "plan": ("numpy", "pyarrow"),
    "run": _RUN,
    "adapt": _RUN,
}
HELPS = {
    "measure": ("torch",),
    "run": ("shared-memory", "ray", "prometheus-client"),
}
"""Checks that a stage needs, and those that help it; see `headrace.doctor.needs`."""
