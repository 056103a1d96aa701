"""Commands of embeddings."""

COMMANDS = {
    "embeddings": (
        "headrace.embeddings.cli.app:app",
        "Train recommendation models without waiting for embedding rows: find out what moves.",
    ),
}
"""Read without an import of the package; see `headrace.cli.app`."""
