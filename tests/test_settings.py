import pwd
import threading
import warnings
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import settings as module
from headrace.errors import InputError
from headrace.settings import Settings, child_environment, sections
from headrace.testbed import Testbed, TestbedSpec
from headrace.testbed.state import LOOPBACK, Record

SECTIONS = list(sections())
EVERY = [
    (section, variable) for section in SECTIONS for variable, _ in section.variables().values()
]


@pytest.mark.parametrize("section", SECTIONS)
def test_an_empty_environment_gives_the_defaults(section: type[Settings]) -> None:
    assert section.from_environment({}) == section()
    assert section().deadline_s == 1800.0


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_is_read_and_documented(section: type[Settings]) -> None:
    assert issubclass(section, Settings)
    assert set(section.variables()) == {field.name for field in fields(section)}
    documented = "".join(str(each.__doc__) for each in section.__mro__[:-1])
    for field, (variable, _) in section.variables().items():
        assert field in documented
        assert variable in documented


def test_no_two_sections_read_the_same_variable() -> None:
    shared = {variable for variable, _ in Settings.variables().values()}
    counts = Counter(variable for _, variable in EVERY if variable not in shared)
    assert len(SECTIONS) > 1
    assert counts
    assert set(counts.values()) == {1}


def test_values_are_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    found = Settings.from_environment(
        {
            "HEADRACE_DEADLINE_S": "2.5",
            "HEADRACE_SOCKET_IFNAME": "eth0",
            "HEADRACE_PACE": str(file),
            "HEADRACE_LOG_LEVEL": "DEBUG",
            "HEADRACE_CACHE": str(tmp_path / "cache"),
            "HEADRACE_TLS": "on",
            "HEADRACE_METRICS": "9400",
            "RANK": "3",
            "WORLD_SIZE": "4",
        }
    )
    assert found == Settings(
        deadline_limit_s=2.5,
        socket_interface="eth0",
        pace=file,
        log_level="debug",
        cache=tmp_path / "cache",
        tls=True,
        metrics=9400,
        rank=3,
        world_size=4,
    )


@pytest.mark.parametrize(("section", "variable"), EVERY)
def test_set_but_empty_is_not_set(section: type[Settings], variable: str) -> None:
    assert section.from_environment({variable: " "}) == section()


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("HEADRACE_CACHE", "/dev/null", "a folder"),
        ("HEADRACE_METRICS", "/no/such/folder/{rank}.prom", "a file in a folder that exists"),
        ("HEADRACE_METRICS", "80", "a port from 1024 to 65535"),
        ("HEADRACE_DEADLINE_S", "0", "a finite number of seconds above 0"),
        ("HEADRACE_DEADLINE_S", "inf", "a finite number of seconds above 0"),
        ("HEADRACE_DEADLINE_S", "nan", "a finite number of seconds above 0"),
        ("HEADRACE_DEADLINE_S", "soon", "a finite number of seconds above 0"),
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


def test_a_deadline_is_one_that_clocks_and_locks_take() -> None:
    """Waits of a job with embeddings ended in an OverflowError."""
    settings = Settings.from_environment({"HEADRACE_DEADLINE_S": "1e300"})
    assert threading.Lock().acquire(timeout=settings.deadline_s)


@pytest.mark.parametrize("variable", ["HEADRACE_PACE", "HEADRACE_METRICS", "HEADRACE_CACHE"])
@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + "/y", "a\0b"])
def test_a_name_that_no_file_can_have_is_refused_or_not_looked_for(
    variable: str, name: str
) -> None:
    """A name of 300 characters ended in an OSError that named no variable."""
    if variable == "HEADRACE_CACHE" or (variable == "HEADRACE_METRICS" and "/" not in name):
        Settings.from_environment({variable: name})
        return
    with pytest.raises(InputError, match=f"{variable} is 'x|{variable} is 'a"):
        Settings.from_environment({variable: name})


def test_the_rank_is_below_the_world_size() -> None:
    with pytest.raises(InputError, match=r"RANK is '4', needs 0 to 3"):
        Settings.from_environment({"RANK": "4", "WORLD_SIZE": "4"})


@given(st.dictionaries(st.sampled_from([variable for _, variable in EVERY]), st.text()))
@pytest.mark.parametrize("section", SECTIONS)
def test_any_text_is_read_or_refused_clearly(
    section: type[Settings], environment: dict[str, str]
) -> None:
    try:
        section.from_environment(environment)
    except InputError as caught:
        refusal = str(caught)
    else:
        return
    assert any(refusal.startswith(f"{variable} is ") for variable in environment)


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DEADLINE_S", "7")
    assert Settings.from_environment().deadline_s == 7


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
@pytest.mark.parametrize("section", SECTIONS)
def test_a_misspelt_variable_is_warned_of_once(
    section: type[Settings], name: str, remedy: str
) -> None:
    """It had no effect, and nothing said so."""
    with pytest.warns(UserWarning, match="is unknown to headrace") as caught:
        assert section.from_environment({name: "4"}) == section()
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


@pytest.mark.usefixtures("unwarned")
def test_variables_of_other_sections_are_known() -> None:
    others = {name for _, name in EVERY}.difference(
        name for name, _ in Settings.variables().values()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Settings.from_environment(dict.fromkeys(others, "not read here"))


def test_what_a_testbed_sets_is_known(tmp_path: Path) -> None:
    known = {variable for variable, _ in Settings.variables().values()} | {*module._MARKS}
    spec = TestbedSpec.from_table({"racks": [{"hosts": 1, "host_rate": "1gbit"}]})
    record = Record(
        directory=tmp_path, run="0", mode=LOOPBACK, spec=spec, owner=None, master_port=1
    )
    ours = {name for name in Testbed(record).environment("host0") if name.startswith("HEADRACE_")}
    assert ours <= known
