"""Importing what iperf3 measured."""

import json
import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.collectives.measure import Profile
from headrace.collectives.measure.imports.iperf.profile import profile_from_iperf
from headrace.collectives.measure.imports.iperf.read import read_round_trips, read_run
from headrace.errors import InputError
from tests.collectives.measure.imports.iperf_json import result, write

A, B = "10.0.0.1", "10.0.0.2"


def test_a_forward_run_is_from_the_client_to_the_server(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, result(A, B, 400)))
    assert (run.client, run.server) == (A, B)
    assert run.bytes_per_s == {(A, B): pytest.approx(50e6)}
    assert run.rtt_us == 120
    assert run.at == 1_700_000_000


def test_a_reverse_run_is_from_the_server_and_knows_no_round_trip(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, result(A, B, 400, reverse=True)))
    assert run.bytes_per_s == {(B, A): pytest.approx(50e6)}
    assert run.rtt_us is None


def test_a_run_both_ways_has_both_rates(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, result(A, B, 400, bidir_mbit=80)))
    assert run.bytes_per_s == {(A, B): pytest.approx(50e6), (B, A): pytest.approx(10e6)}


@pytest.mark.parametrize("reverse", [False, True])
def test_the_servers_own_file_says_the_same(tmp_path: Path, reverse: bool) -> None:
    client = read_run(write(tmp_path, result(A, B, 400, reverse=reverse)))
    server = read_run(
        write(tmp_path, result(f"::ffff:{B}", f"::ffff:{A}", 400, reverse=reverse, by_server=True))
    )
    assert server.bytes_per_s == client.bytes_per_s
    assert (server.client, server.server) == (client.client, client.server)
    assert (server.rtt_us is None) != (client.rtt_us is None)  # the sender has it


def test_a_file_may_name_its_hosts(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, result(A, B, 400), "node-a-to-node-b.json"))
    assert run.bytes_per_s == {("node-a", "node-b"): pytest.approx(50e6)}
    assert run.addresses == (A, B)


def test_an_older_version_has_only_the_mean(tmp_path: Path) -> None:
    found = result(A, B, 400)
    del found["end"]["streams"][0]["sender"]["min_rtt"]
    assert read_run(write(tmp_path, found)).rtt_us == 360


def racks(folder: Path, inside: float = 400, across: float = 100) -> list[Path]:
    """All pairs of two racks of two, hosts a to d, in random order."""
    rack = {"a": 0, "b": 1, "c": 0, "d": 1}
    files = [
        write(
            folder,
            result(
                f"10.0.0.{ord(x)}",
                f"10.0.0.{ord(y)}",
                inside if rack[x] == rack[y] else across,
                rtt_us=100 if rack[x] == rack[y] else 180,
            ),
            f"{x}-to-{y}.json",
        )
        for x in rack
        for y in rack
        if x < y
    ]
    random.Random(1).shuffle(files)
    return files


def test_a_profile_of_all_pairs(tmp_path: Path) -> None:
    profile = profile_from_iperf(racks(tmp_path))
    hosts = profile.topology.hosts
    assert sorted(hosts) == ["a", "b", "c", "d"]
    assert {frozenset(group) for group in profile.host_groups} == {
        frozenset("ac"),
        frozenset("bd"),
    }
    for link in profile.topology.links:
        near = {hosts[link.src], hosts[link.dst]} in ({"a", "c"}, {"b", "d"})
        assert link.beta_us_per_mb == pytest.approx(20_000 if near else 80_000)
        assert link.alpha_us == pytest.approx(50 if near else 90)
    assert profile.topology.addresses[hosts.index("a")] == f"10.0.0.{ord('a')}"
    shared = {s.name: s.beta_us_per_mb for s in profile.topology.shared}
    assert shared["nic-out-a"] == pytest.approx(20_000)
    assert shared["uplink-out-0"] == pytest.approx(80_000)
    assert profile.provenance["assumed"] == list(shared)
    profile.save(tmp_path / "p")
    assert Profile.load(tmp_path / "p").digest == profile.digest


def test_uplinks_are_not_assumed_where_runs_are_alike(tmp_path: Path) -> None:
    profile = profile_from_iperf(racks(tmp_path, across=390))
    assert not [s for s in profile.topology.shared if s.name.startswith("uplink")]


def test_the_other_direction_and_the_fastest_run_count(tmp_path: Path) -> None:
    slow = write(tmp_path, result(A, B, 100), "1.json")
    fast = write(tmp_path, result(A, B, 400, rtt_us=80), "2.json")
    profile = profile_from_iperf([slow, fast])
    assert [link.beta_us_per_mb for link in profile.topology.links] == [20_000, 20_000]
    assert [link.alpha_us for link in profile.topology.links] == [40, 40]
    back = write(tmp_path, result(A, B, 200, reverse=True), "3.json")
    betas = [k.beta_us_per_mb for k in profile_from_iperf([slow, fast, back]).topology.links]
    assert betas == [20_000, 40_000]


def test_round_trips_of_ping_go_first(tmp_path: Path) -> None:
    run = write(tmp_path, result(A, B, 400, rtt_us=5000))
    table = tmp_path / "rtt.csv"
    table.write_text(f"host,host,us\n{B}, {A}, 90\n\n")
    profile = profile_from_iperf([run], round_trips=read_round_trips(table))
    assert [link.alpha_us for link in profile.topology.links] == [45, 45]
    assert np.nanmax(profile.matrix("kernel_rtt_us")) == 90


def test_missing_pairs_are_named(tmp_path: Path) -> None:
    files = racks(tmp_path)
    with pytest.raises(InputError, match=r"no run of iperf3 for . and ., .*every pair"):
        profile_from_iperf(files[:2])
    silent = write(tmp_path, result(A, B, 400, rtt_us=None))
    with pytest.raises(InputError, match=f"no round trip.* for {A} and {B}"):
        profile_from_iperf([silent])
    with pytest.raises(InputError, match="no files"):
        profile_from_iperf([])
    with pytest.raises(InputError, match="no file is about 'x'"):
        profile_from_iperf(files, round_trips={("a", "x"): 1.0})


def test_hosts_under_two_names_are_refused(tmp_path: Path) -> None:
    named = write(tmp_path, result(A, B, 400), "a-to-b.json")
    unnamed = write(tmp_path, result(A, B, 400), "other.json")
    with pytest.raises(InputError, match=r"address 10.0.0.1 is host 'a' in one file"):
        profile_from_iperf([named, unnamed])
    elsewhere = write(tmp_path, result("10.9.9.9", B, 400), "a-to-c.json")
    with pytest.raises(InputError, match="host 'a' has address 10.0.0.1 in one file"):
        profile_from_iperf([named, elsewhere])


@pytest.mark.parametrize(
    ("path", "found", "message"),
    [
        (("error",), "unable to connect", "'error' is set: the run failed: unable to connect"),
        (("start",), None, "'start': None is not an object"),
        (("start", "connected"), [], r"'start.connected\[0\]' is missing"),
        (("start", "connected"), {}, "'start.connected': {} is not a list"),
        (
            ("start", "connected", 0, "local_host"),
            7,
            r"connected\[0\].local_host': 7 is not a",
        ),
        (("start", "connected", 0, "local_host"), B, "joins 10.0.0.2 with itself"),
        (("start", "test_start", "protocol"), "UDP", "is 'UDP', needs 'TCP'"),
        (("start", "test_start", "reverse"), "x", "test_start.reverse': 'x' is not a number"),
        (("end", "sum_received", "bits_per_second"), -1, "bits_per_second' is -1, needs 0 to"),
        (("end", "sum_received", "bits_per_second"), 1e300, "needs 0 to 1e"),
        (("end", "streams"), 5, "'end.streams': 5 is not a list"),
        (("end",), {}, "are missing or 0"),
    ],
)
def test_a_wrong_field_is_named(
    tmp_path: Path, path: tuple[str | int, ...], found: object, message: str
) -> None:
    whole: Any = result(A, B, 400)
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = found
    with pytest.raises(InputError, match=rf"run.json: .*{message}"):
        read_run(write(tmp_path, whole))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "null", "iperf3: error", "\xff"])
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="x.json"):
        read_run(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_run(tmp_path / "none.json")


@pytest.mark.parametrize("line", ["a,b", "a,b,x", "a,a,5", "a,b,-1", "a,b,nan", ",b,5"])
def test_a_wrong_line_of_round_trips_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rtt.csv"
    path.write_text(f"a,b,5\n{line}\n")
    with pytest.raises(InputError, match="line 2"):
        read_round_trips(path)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**30),
    st.floats(),
    st.text(max_size=3),
    st.builds(list),  # new ones: later alterations may be of them
    st.builds(dict),
    st.builds(lambda: [{}]),
)


def places(found: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = (
        found.items()
        if isinstance(found, dict)
        else enumerate(found)
        if isinstance(found, list)
        else ()
    )
    return [path] * bool(path) + [p for key, value in items for p in places(value, (*path, key))]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_altered_files_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    whole: Any = result(A, B, 400, bidir_mbit=100)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(whole)))
        inner = whole
        for key in path[:-1]:
            inner = inner[key]
        if data.draw(st.booleans()) and isinstance(inner, dict):
            del inner[path[-1]]
        else:
            inner[path[-1]] = data.draw(VALUES)
    file = tmp_path / "altered.json"
    file.write_text(json.dumps(whole))
    try:
        profile = profile_from_iperf([file])
    except InputError as error:
        assert str(error)
        return
    assert profile.topology.ranks == 2
    assert all(0 < link.beta_us_per_mb < 1e13 for link in profile.topology.links)


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")
def test_a_live_run_is_read(tmp_path: Path) -> None:
    server = subprocess.Popen(["iperf3", "-s", "-1", "-p", "52011"], stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        done = subprocess.run(
            ["iperf3", "-J", "-t", "1", "-p", "52011", "-c", "127.0.0.1", "-B", "127.0.0.2"],
            capture_output=True,
            check=False,
            timeout=20,
        )
        (tmp_path / "live.json").write_bytes(done.stdout)
    finally:
        server.kill()
        server.wait()
    run = read_run(tmp_path / "live.json")
    assert run.bytes_per_s["127.0.0.2", "127.0.0.1"] > 1e6
    assert run.rtt_us is not None
