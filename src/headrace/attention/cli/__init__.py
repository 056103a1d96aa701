"""Commands of attention."""

COMMANDS = {
    "attention": (
        "headrace.attention.cli.app:app",
        "Decode over fewer bytes of keys and values: find out how many a model needs.",
    ),
}
"""Read without an import of the package; see `headrace.cli.app`."""
