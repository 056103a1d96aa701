"""Commands of compression."""

COMMANDS = {
    "compression": (
        "headrace.compression.cli.app:app",
        "Send gradients in fewer bytes: find out whether, and with what.",
    ),
}
"""Read without an import of the package; see `headrace.cli.app`."""

_RUN = ("native", "torch", "numpy", "network", "open-files")
NEEDS = {
    "measure": ("native", "torch", "numpy", "pyarrow"),
    "plan": ("numpy", "pyarrow"),
    "run": _RUN,
    "adapt": _RUN,
}
HELPS = {
    "measure": ("devices",),
    "run": ("devices", "shared-memory"),
}
"""Checks that a stage needs, and those that help it; see `headrace.doctor.needs`."""
