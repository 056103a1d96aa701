"""Commands of attention."""

COMMANDS = {
    "attention": (
        "headrace.attention.cli.app:app",
        "Decode over fewer bytes of keys and values: find out how many a model needs.",
    ),
}
"""Read without an import of the package; see `headrace.cli.app`."""

NEEDS = dict.fromkeys(
    ("measure", "plan", "run", "adapt", "evaluate"),
    ("native", "torch", "numpy", "pyarrow", "transformers"),
)
HELPS = {
    "plan": ("scikit-learn", "kneed", "devices"),
    "run": ("devices", "prometheus-client"),
    "evaluate": ("lm-eval", "devices"),
}
"""Checks that a stage needs, and those that help it; see `headrace.doctor.needs`."""
