import pytest

from headrace import fields
from headrace.errors import ArtifactError, InputError
from headrace.fields import Field

DOCUMENT = {"a": {"b": [1, {"c": "x"}]}, "n": 5}


def whole() -> Field:
    return Field(DOCUMENT, "file", ArtifactError)


def test_values_are_read_at_their_path() -> None:
    assert whole().at("a", "b", 1, "c").text() == "x"
    assert whole().at("n").integer(0, 5) == 5
    assert [item.path for item in whole().at("a", "b").items()] == ["a.b[0]", "a.b[1]"]
    assert whole().at("a", "z", 3, default=7).read(fields.integer) == 7
    whole().allow("a", "n")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: whole().at("z"), "file: field 'z' is missing"),
        (lambda: whole().at("a", "b", 2), r"file: field 'a\.b\[2\]' is missing"),
        (lambda: whole().at("n", "z", default=0), "file: field 'n': 5 is not an object"),
        (lambda: whole().at("a", 0), "file: field 'a': {.*} is not a list"),
        (lambda: whole().at("n").text(), "file: field 'n': 5 is not a text"),
        (lambda: whole().at("n").integer(6, 9), "file: field 'n' is 5, needs 6 to 9"),
        (lambda: whole().allow("a", "b"), "file: field 'n' is unknown, needs one of a, b"),
        (lambda: whole().read(fields.text), "file: {.*} is not a text"),
        (
            lambda: whole().at("a").read(lambda row: row["q"], "a row"),
            "file: field 'a' needs a row: 'q' is missing",
        ),
    ],
)
def test_errors_name_the_file_and_the_path(read, message: str) -> None:
    with pytest.raises(ArtifactError, match=f"^{message}"):
        read()


def test_the_error_is_of_the_given_class() -> None:
    with pytest.raises(InputError) as caught:
        Field(3, "file").text()
    assert type(caught.value) is InputError
