import pwd
import warnings
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import settings as module
from headrace.errors import InputError
from headrace.settings import Settings, child_environment
from headrace.testbed import Testbed, TestbedSpec
from headrace.testbed.state import LOOPBACK, Record


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Settings.from_environment({}) == Settings()
    assert Settings().deadline_s == 1800.0


def test_every_field_is_read_and_documented() -> None:
    assert set(module._VARIABLES) == {field.name for field in fields(Settings)}
    for field, (variable, _) in module._VARIABLES.items():
        assert field in str(Settings.__doc__)
        assert variable in str(Settings.__doc__)


def test_values_are_read(tmp_path: Path) -> None:
    book = tmp_path / "book"
    book.touch()
    found = Settings.from_environment(
        {
            "HEADRACE_PLAN_BOOK": str(book),
            "HEADRACE_DEADLINE_S": "2.5",
            "HEADRACE_CHANNELS": "4",
            "HEADRACE_THREADS": "3",
            "HEADRACE_SOCKET_IFNAME": "eth0",
            "HEADRACE_PACE": str(book),
            "HEADRACE_LOG_LEVEL": "DEBUG",
            "HEADRACE_MEASURE": "Always",
            "HEADRACE_CACHE": str(tmp_path / "cache"),
            "HEADRACE_TLS": "on",
            "HEADRACE_ADAPT": "Off",
            "HEADRACE_ADAPT_LOG": str(tmp_path / "log"),
            "HEADRACE_METRICS": "9400",
            "RANK": "3",
            "WORLD_SIZE": "4",
        }
    )
    assert found == Settings(
        plan_book=book,
        deadline_s=2.5,
        channels=4,
        threads=3,
        socket_interface="eth0",
        pace=book,
        log_level="debug",
        measure="always",
        cache=tmp_path / "cache",
        tls=True,
        adapt=False,
        adapt_log=tmp_path / "log",
        metrics=9400,
        rank=3,
        world_size=4,
    )


@pytest.mark.parametrize("variable", [variable for variable, _ in module._VARIABLES.values()])
def test_set_but_empty_is_not_set(variable: str) -> None:
    assert Settings.from_environment({variable: " "}) == Settings()


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("HEADRACE_PLAN_BOOK", "/no/such/file", "the path of a file that exists"),
        ("HEADRACE_MEASURE", "sometimes", "one of auto, off, always"),
        ("HEADRACE_CACHE", "/dev/null", "a folder"),
        ("HEADRACE_ADAPT", "yes", "on or off"),
        ("HEADRACE_ADAPT_LOG", "/no/such/folder/log", "a file in a folder that exists"),
        ("HEADRACE_METRICS", "/no/such/folder/{rank}.prom", "a file in a folder that exists"),
        ("HEADRACE_METRICS", "80", "a port from 1024 to 65535"),
        ("HEADRACE_DEADLINE_S", "0", "a finite number of seconds above 0"),
        ("HEADRACE_DEADLINE_S", "inf", "a finite number of seconds above 0"),
        ("HEADRACE_DEADLINE_S", "nan", "a finite number of seconds above 0"),
        ("HEADRACE_DEADLINE_S", "soon", "a finite number of seconds above 0"),
        ("HEADRACE_CHANNELS", "0", "1 to 64"),
        ("HEADRACE_CHANNELS", "65", "1 to 64"),
        ("HEADRACE_CHANNELS", "two", "1 to 64"),
        ("HEADRACE_SOCKET_IFNAME", "no such name", "a network interface's name"),
        ("HEADRACE_SOCKET_IFNAME", "longer-than-ifnamsiz", "a network interface's name"),
        ("HEADRACE_LOG_LEVEL", "loud", "one of debug, info, warning, error"),
        ("RANK", "-1", "a whole number of at least 0"),
        ("WORLD_SIZE", "0", "a whole number of at least 1"),
        ("RANK", "1.5", "a whole number of at least 0"),
    ],
)
def test_a_bad_value_names_variable_finding_and_remedy(
    variable: str, text: str, allowed: str
) -> None:
    with pytest.raises(InputError) as caught:
        Settings.from_environment({variable: text})
    message = str(caught.value)
    assert message.startswith(f"{variable} is '{text}', needs ")
    assert allowed in message


def test_the_rank_is_below_the_world_size() -> None:
    with pytest.raises(InputError, match=r"RANK is '4', needs 0 to 3"):
        Settings.from_environment({"RANK": "4", "WORLD_SIZE": "4"})


@given(st.dictionaries(st.sampled_from([v for v, _ in module._VARIABLES.values()]), st.text()))
def test_any_text_is_read_or_refused_clearly(environment: dict[str, str]) -> None:
    try:
        Settings.from_environment(environment)
    except InputError as caught:
        refusal = str(caught)
    else:
        return
    assert any(refusal.startswith(f"{variable} is ") for variable in environment)


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CHANNELS", "7")
    assert Settings.from_environment().channels == 7


def test_a_child_gets_changes_and_removals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CHANNELS", "7")
    monkeypatch.setenv("HEADRACE_PACE", "x")
    child = child_environment({"HEADRACE_CHANNELS": "8", "HEADRACE_PACE": None, "RANK": "1"})
    assert child["HEADRACE_CHANNELS"] == "8"
    assert child["RANK"] == "1"
    assert "HEADRACE_PACE" not in child
    assert "HEADRACE_PACE" in child_environment()


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """HOME is not set, and the user has no entry that would name a home."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.usefixtures("no_home")
def test_a_user_without_a_home_has_no_cache_folder(tmp_path: Path) -> None:
    """A container's arbitrary user: asking for the folder raised a bare RuntimeError."""
    assert Settings.from_environment({}).cache_folder is None
    assert Settings(cache=tmp_path).cache_folder == tmp_path
    with pytest.raises(InputError, match=r"^HEADRACE_CACHE is '~/cache', needs a path without '~'"):
        Settings.from_environment({"HEADRACE_CACHE": "~/cache"})


@pytest.fixture
def unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_warned", set())


@pytest.mark.usefixtures("unwarned")
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("HEADRACE_TREADS", "did you mean HEADRACE_THREADS?"),
        ("HEADRACE_SOCKET_IFACE", "did you mean HEADRACE_SOCKET_IFNAME?"),
        ("headrace_tls", "did you mean HEADRACE_TLS?"),
        ("HEADRACE_", "known are HEADRACE_ADAPT, "),
        ("HEADRACE_COLOUR_OF_IT", "known are HEADRACE_ADAPT, "),
    ],
)
def test_a_misspelt_variable_is_warned_of_once(name: str, remedy: str) -> None:
    """It had no effect, and nothing said so."""
    with pytest.warns(UserWarning, match="is unknown to headrace") as caught:
        assert Settings.from_environment({name: "4"}) == Settings()
    [warning] = caught
    assert str(warning.message).startswith(
        f"the environment variable {name} is unknown to headrace and ignored: {remedy}"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Settings.from_environment({name: "4"})


@pytest.mark.usefixtures("unwarned")
def test_what_headrace_sets_itself_and_empty_variables_are_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Settings.from_environment({"HEADRACE_TESTBED_HOST": "host0", "HEADRACE_TREADS": " "})
        Settings.from_environment({"HEADRACE_TEST_THREADS": "3", "HEADRACER": "1"})


def test_what_a_testbed_sets_is_known(tmp_path: Path) -> None:
    known = {variable for variable, _ in module._VARIABLES.values()} | {*module._MARKS}
    spec = TestbedSpec.from_table({"racks": [{"hosts": 1, "host_rate": "1gbit"}]})
    record = Record(
        directory=tmp_path, run="0", mode=LOOPBACK, spec=spec, owner=None, master_port=1
    )
    ours = {name for name in Testbed(record).environment("host0") if name.startswith("HEADRACE_")}
    assert ours <= known
