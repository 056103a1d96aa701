"""The configuration: the native tree's fields, refused out of range, kept in artifacts."""

import pytest

from headrace.errors import ArtifactError
from headrace.index.configuration import Configuration, read_configuration
from headrace.index.errors import ConfigurationError


def test_fields_and_defaults_are_the_native_ones() -> None:
    from headrace import _native

    native = _native.IndexConfiguration()
    names = [name for name in dir(native) if not name.startswith("_")]
    assert {name: getattr(native, name) for name in names} == Configuration().to_head()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"leaf": "tree"}, "leaf is 'tree', needs one of gapped, log, hashed, perfect"),
        ({"fragment_keys": 7}, "fragment_keys is 7, needs 8 to 32768"),
        ({"fragments": 2.0}, "fragments: 2.0 is not an integer"),
        ({"fragments": 4, "initial_fragments": 8}, "initial_fragments is 8, needs at most fragm"),
        ({"leaf_keys": 1000}, "leaf_keys is 1000, needs a power of two"),
        ({"fill": 0.1}, "fill is 0.1, needs 0.3 to 0.98"),
        ({"max_search": float("nan")}, "max_search is nan, needs 0 to"),
        ({"max_shifts": "many"}, "max_shifts: 'many' is not a number"),
        ({"insert_fraction": 1.1}, "insert_fraction is 1.1, needs 0 to 1"),
        ({"fingerprints": 1}, "fingerprints: 1 is not true or false"),
    ],
)
def test_wrong_fields_are_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Configuration(**given)  # pyright: ignore[reportArgumentType]


def test_it_is_kept_in_json() -> None:
    made = Configuration(leaf="log", fragment_keys=64, fingerprints=False)
    assert read_configuration(made.to_head(), "a.file") == made
    assert read_configuration({}, "a.file") == Configuration()
    assert made.name == "log fragment_keys=64 fingerprints=false"
    for wrong, message in (
        ({"leaf": 3}, "a.file: field 'leaf': 3 is not a text"),
        ({"speed": 3}, "a.file: field 'speed' is unknown"),
        ({"fill": 0.2}, "a.file: .*fill is 0.2, needs"),
    ):
        with pytest.raises(ArtifactError, match=message):
            read_configuration(wrong, "a.file")


def test_the_name_has_what_the_type_depends_on() -> None:
    assert Configuration(leaf="perfect", fill=0.5, fragment_keys=64).name == "perfect"
    assert set(Configuration(leaf="perfect").used) == {"leaf_keys"}
    assert Configuration(leaf="gapped", max_search=8.0).name == "gapped max_search=8"
