"""Commands of compression."""

COMMANDS = {
    "compression": (
        "headrace.compression.cli.app:app",
        "Send gradients in fewer bytes: find out whether, and with what.",
    ),
}
"""Read without an import of the package; see `headrace.cli.app`."""
