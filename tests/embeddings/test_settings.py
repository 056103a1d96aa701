"""Settings that `headrace embeddings run` gives to a script."""

import pytest

from headrace.embeddings.settings import EmbeddingSettings
from headrace.errors import InputError


def test_a_trainer_reads_where_its_cacher_is() -> None:
    settings = EmbeddingSettings.from_environment(
        {
            "HEADRACE_EMBEDDINGS_CACHER": "[::1]:4000",
            "HEADRACE_EMBEDDINGS_SECRET": "word",
            "HEADRACE_EMBEDDINGS_ROLE": "Reader",
            "HEADRACE_EMBEDDINGS_CACHE_BYTES": "4096",
            "HEADRACE_EMBEDDINGS_SILENCE_S": "20",
            "RANK": "1",
            "WORLD_SIZE": "2",
        }
    )
    assert settings.cacher == "[::1]:4000"
    assert settings.secret == "word"
    assert "word" not in repr(settings)
    assert (settings.role, settings.cache_bytes, settings.rank) == ("reader", 4096, 1)
    assert settings.silence_s == 20
    alone = EmbeddingSettings.from_environment({})
    assert (alone.cacher, alone.secret, alone.role, alone.cache_bytes) == (
        None,
        None,
        "trainer",
        None,
    )


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("HEADRACE_EMBEDDINGS_CACHER", "here", "needs an address as 127.0.0.1:4000"),
        ("HEADRACE_EMBEDDINGS_CACHER", "host:port", "needs an address as 127.0.0.1:4000"),
        ("HEADRACE_EMBEDDINGS_ROLE", "server", "needs one of trainer, reader"),
        ("HEADRACE_EMBEDDINGS_CACHE_BYTES", "0", "needs a whole number of at least 1"),
        ("HEADRACE_EMBEDDINGS_SILENCE_S", "0", "needs a whole number of at least 1"),
    ],
)
def test_wrong_settings_are_named(variable: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^{variable} is '{text}', {message}"):
        EmbeddingSettings.from_environment({variable: text})
