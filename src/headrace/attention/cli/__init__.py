"""Commands of attention."""

COMMANDS = {
    "attention": (
        "headrace.attention.cli.app:app",
        "Decode over fewer bytes of keys and values: find out how many a model needs.",
    ),
}
"""Read without an import of the package; see `headrace.cli.app`."""

NEEDS = {
    "measure": ("native", "torch", "numpy", "pyarrow", "transformers"),
    "plan": ("native", "torch", "numpy", "pyarrow", "transformers"),
    "run": ("native", "torch", "numpy", "pyarrow", "transformers"),
    "adapt": ("native", "torch", "numpy", "pyarrow", "transformers"),
    "evaluate": ("native", "torch", "numpy", "pyarrow", "transformers"),
}
HELPS = {
    "plan": ("scikit-learn", "kneed", "devices"),
    "run": ("devices", "prometheus-client"),
    "evaluate": ("lm-eval", "devices"),
}
"""Checks that a stage needs, and those that help it; see `headrace.doctor.needs`."""
