"""Indexes in folders: what is committed survives, beside other processes that read."""

import copy
import errno
import itertools
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace.index
from headrace.errors import ForkError
from headrace.index import DurableIndex, FolderError, Index, KeysError
from headrace.index.run import durable
from tests.waiting import HANG_S

KEYS = st.integers(-50, 50)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["insert", "erase", "batch", "reopen", "checkpoint", "refresh"]),
        st.lists(st.tuples(KEYS, st.floats(allow_nan=False)), max_size=20),
    ),
    max_size=12,
)


def opened(folder: Path, **options: Any) -> DurableIndex:
    return headrace.index.open(folder, **options)


@settings(max_examples=25)
@given(changes=CHANGES)
def test_it_is_a_dictionary_that_is_kept(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, list[tuple[int, float]]]]
) -> None:
    folder = tmp_path_factory.mktemp("durable") / "index"
    index = opened(folder, key="int64", value="float64")
    reader = opened(folder, read_only=True)
    expected: dict[int, float] = {}
    for name, pairs in changes:
        keys, values = [key for key, _ in pairs], [value for _, value in pairs]
        groups = index.groups
        match name:
            case "insert":
                index.insert(keys, values)
                expected.update(pairs)
            case "erase":
                index.erase(keys, sync=True)
                for key in keys:
                    expected.pop(key, None)
            case "batch":
                with index.batch() as batch:
                    batch.erase(keys)
                    batch.insert(keys[::2], values[::2])
                for key in keys:
                    expected.pop(key, None)
                expected.update(pairs[::2])
            case "reopen":
                index.close()
                index = opened(folder)
            case "checkpoint":
                index.checkpoint()
            case _:
                reader.refresh()
                assert dict(reader.items()) == expected
                assert reader.groups == index.groups
        assert index.groups >= groups
        assert dict(index.items()) == expected
        assert len(index) == len(expected)
        assert index.range(-5, 9)[0].tolist() == sorted(k for k in expected if -5 <= k < 9)
        assert index.scan(0, 3)[0].tolist() == sorted(k for k in expected if k >= 0)[:3]
        assert [index.get(key) for key in range(-5, 5)] == [expected.get(k) for k in range(-5, 5)]
    assert index.snapshot() == expected
    index.close()


def test_types_are_of_the_folder(tmp_path: Path) -> None:
    for number, key in enumerate(("uint64", "int64", "float64")):
        folder = tmp_path / str(number)
        with opened(folder, key=key, value="float64") as index:
            index[3] = 0.5
            index.insert(np.array([1, 2], key), [1.5, 2.5])
            assert index.keys().dtype == key
        with opened(folder) as index:
            assert (index.dtype, index.value_dtype) == (np.dtype(key), np.float64)
            assert dict(index.items()) == {1: 1.5, 2: 2.5, 3: 0.5}
            assert index[[1, 3]].tolist() == [1.5, 0.5]
        with pytest.raises(KeysError, match="value is int64, the folder has float64"):
            opened(folder, value="int64")


def test_batches_of_keys_are_erased_and_pairs_inserted(tmp_path: Path) -> None:
    with opened(tmp_path / "index", key="int64") as index:
        index.update([(1, 10), (2, 20)])
        index.update(iter({3: 30, 4: 40}.items()))
        assert 3.0 in index
        groups = index.groups
        del index[np.array([1, 3])]
        assert index.groups == groups + 1
        rows = {4: 40, 2: 20}
        for keys in (rows.keys(), iter(rows)):  # gave the value of the first
            assert index.get(keys).tolist() == [40, 20]
        assert index[rows.keys()].tolist() == [40, 20]
        assert index.contains({5}).tolist() == [False]
        assert {2, 4} not in index
        for keys, missing in ((1, 1), ([2, 3], 3)):
            with pytest.raises(KeyError, match=str(missing)):
                del index[keys]
        assert dict(index.items()) == {2: 20, 4: 40}


def test_a_writer_leaves_another_folder_of_its_path_alone(tmp_path: Path) -> None:
    """It recorded its own groups there, or began a log, and the folder was refused as damaged."""
    folder = tmp_path / "index"
    index = opened(folder)
    for number in range(5):
        index.insert(number, number)
    shutil.rmtree(folder)
    with opened(folder) as other:
        other.insert(7, 7)
        with pytest.raises(FolderError, match="is another folder now than the one that was"):
            index.checkpoint()
        with pytest.raises(FolderError, match="cannot sync, as it was removed"):
            index.close()
    assert dict(opened(folder).items()) == {7: 7}


def test_a_relative_folder_stays_the_same_where_the_process_changes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints and refreshes failed, and so did `close`."""
    monkeypatch.chdir(tmp_path)
    with opened(Path("index")) as index:
        reader = opened(Path("index"), read_only=True)
        index.insert(1, 2)
        monkeypatch.chdir("/")
        index.checkpoint()
        assert reader.refresh()
        assert dict(reader.items()) == {1: 2}
    assert dict(opened(tmp_path / "index").items()) == {1: 2}
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FolderError, match="index: the working directory is gone"):
        opened(Path("index"))


def test_other_indexes_take_its_rows_and_pickles_do_not(tmp_path: Path) -> None:
    """An `Index` of it was a set of its keys: the values were dropped without an error."""
    with opened(tmp_path / "index", key="float64") as index, opened(tmp_path / "other") as other:
        index.insert([1.5, 2.5], [3, 4])
        assert Index(index) == Index([1.5, 2.5], [3, 4])
        united = Index([2.5, 3.5], [5, 6])
        united.update(index)
        assert dict(united.items()) == {1.5: 3, 2.5: 4, 3.5: 6}
        other.insert(7, 8)
        with pytest.raises(KeysError, match="keys have type float64, needs uint64"):
            other.update(index)
        assert dict(other.items()) == {7: 8}
        for copied in (pickle.dumps, copy.copy):
            with pytest.raises(TypeError, match=r"open .*index with read_only=True in the other"):
                copied(index)


def test_readers_refuse_a_folder_of_other_types_in_its_place(tmp_path: Path) -> None:
    """Floats of 64 bits were read as the integers that have the same bits."""
    folder = tmp_path / "index"
    opened(folder).close()
    reader = opened(folder, read_only=True)
    shutil.rmtree(folder)
    opened(folder, key="int64").close()
    with pytest.raises(KeysError, match="holds keys that are signed integers"):
        reader.refresh()
    shutil.rmtree(folder)
    with opened(folder, value="float64") as index:
        index.insert(7, 1.5)
    with pytest.raises(FolderError, match="with values of type float64 in place of int64"):
        reader.refresh()
    with pytest.raises(FolderError, match="is closed; open it again"):
        reader.get(7)
    assert opened(folder, read_only=True)[7] == 1.5


def test_a_commit_in_a_removed_folder_fails(tmp_path: Path) -> None:
    """It was reported as made, and went with the process."""
    index = opened(tmp_path / "index")
    index.insert(1, 10)
    shutil.rmtree(tmp_path / "index")
    with pytest.raises(FolderError, match="cannot sync, as it was removed"):
        index.insert(2, 20, sync=True)
    index.close()


def test_a_full_disk_is_named_with_the_file_that_is_there(tmp_path: Path) -> None:
    """A log after a checkpoint was named "changes-1.part", as before it had its name."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(tmp_path / "index") as index:
        index.insert(1, 10)
        index.checkpoint()
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
        try:
            with pytest.raises(FolderError, match="cannot write .*File too large") as caught:
                index.update({key: key for key in range(100)})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        (name,) = re.findall(r"cannot write (\S+):", str(caught.value))
        assert Path(name).is_file()


def test_a_large_one_is_loaded_and_read_in_blocks(tmp_path: Path) -> None:
    keys = np.random.default_rng(1).permutation(200_000)
    with opened(tmp_path / "index", key="int64") as index:
        index.replace(keys, keys * 2)
        index.insert(-7, 1, sync=True)
    with opened(tmp_path / "index") as index:  # answers from the snapshot at first
        assert index[-7] == 1
        assert index[keys[:1000]].tolist() == (keys[:1000] * 2).tolist()
        assert index.keys().tolist() == [-7, *range(200_000)]
        memory = index.snapshot()
        del index[5]
        assert 5 not in index
        assert memory[5] == 10
        assert isinstance(memory, Index)
    reader = opened(tmp_path / "index", read_only=True)
    assert len(reader) == 200_000
    assert list(reader)[:3] == [-7, 0, 1]


def test_a_short_range_reads_no_more_than_it_needs(tmp_path: Path) -> None:
    """It read 65,536 rows, in a hundred times of an `Index`'s time, and found damage behind it."""
    folder = tmp_path / "index"
    keys = np.arange(200_000)
    with opened(folder) as index:
        index.replace(keys, keys)
    snapshot = folder / "snapshot-1"
    content = bytearray(snapshot.read_bytes())
    content[4096 + 8 * 20_000] ^= 255  # the key of this row
    snapshot.write_bytes(content)
    with opened(folder) as index:
        for low in (0, 777, 199_990):
            assert index.range(low, low + 10)[1].tolist() == [*range(low, low + 10)]
        with pytest.raises(FolderError, match="snapshot-1: block 2 of"):
            index.range(0, 30_000)


def test_readers_follow_a_writer_through_checkpoints(tmp_path: Path) -> None:
    """Each refresh gives whole groups: of a group all keys have one value."""
    folder = tmp_path / "index"
    keys = np.arange(500)
    ended = threading.Event()
    with opened(folder, key="int64", value="int64", checkpoint_log_bytes=20_000) as index:
        index.insert(keys, 0)
        reader = opened(folder, read_only=True)

        def write() -> None:
            for number in range(1, 200):
                index.insert(keys, number)
            ended.set()

        thread = threading.Thread(target=write)
        thread.start()
        last = 0
        try:
            while not ended.is_set():
                reader.refresh()
                values = reader.values()
                assert values.min() == values.max() >= last
                last = int(values[0])
        finally:
            thread.join()
        index.checkpoint()  # after the one in the background, which would be news
        assert reader.refresh()
        assert reader[0] == 199
        assert not reader.refresh()


KILLED = """
import os, signal, sys
import headrace.index
index = headrace.index.open(sys.argv[1], key="int64", value="int64")
for number in range(50):
    index.insert([number, -number - 1], number)
print("committed", flush=True)
batch = index.batch()
batch.insert(1000, 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_after_commits(folder: Path) -> None:
    """Commit 50 groups in a process that is killed then."""
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def with_byte_changed(content: bytes) -> bytes:
    """Return a file's content with another byte in the middle."""
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 255
    return bytes(changed)


def test_what_was_committed_survives_a_kill(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    kill_after_commits(folder)
    with opened(folder) as index:
        assert index.groups == 50
        assert index.keys().tolist() == list(range(-50, 50))
        assert 1000 not in index


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    with opened(folder) as index:
        with pytest.raises(FolderError, match="is open already, here or in another process"):
            opened(folder)
        index[1] = 2
        reader = opened(folder, read_only=True)
        assert reader[1] == 2
        for call in (reader.sync, reader.checkpoint, lambda: reader.insert(1, 1), reader.batch):
            with pytest.raises(FolderError, match="is open to read alone"):
                call()
    with pytest.raises(FolderError, match="is closed; open it again"):
        index.get(1)
    index.close()
    assert repr(index).startswith("<closed DurableIndex in ")


def test_a_folder_whose_name_is_no_utf_8_is_named(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"index-\xff")
    for read_only in (False, True):
        with pytest.raises(FolderError, match=r"index-\\udcff': the name is no UTF-8"):
            opened(folder, key="int64", value="int64", read_only=read_only)
    assert not folder.exists()


def test_damage_is_named_and_recovered_from(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    with opened(folder, key="int64") as index:
        for number in range(20):
            index.insert(number, number)
    log = folder / "changes-0"
    whole = log.read_bytes()
    log.write_bytes(whole[:-60])
    with pytest.raises(FolderError, match="changes-0: ends at offset .* groups after it are"):
        opened(folder)
    with opened(folder, recover=True) as index:
        assert index.keys().tolist() == list(range(index.groups))
        assert 15 < index.groups < 20
    log.write_bytes(with_byte_changed(whole))
    with pytest.raises(FolderError, match="changes-0: .* is damaged"):
        opened(folder)
    with pytest.raises(FolderError, match="had been synced"):  # a loss of power does not do that
        opened(folder, recover=True)


def test_readers_refuse_what_was_closed_with_more(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    with opened(folder) as index:
        index.insert([1, 2], [1, 2])
    log = folder / "changes-0"
    one_group = log.stat().st_size
    with opened(folder) as index:
        index.insert(3, 3)
    whole = log.read_bytes()
    log.write_bytes(whole[:one_group])
    with pytest.raises(FolderError, match="ends after group 1; it was closed with 2 groups"):
        opened(folder, read_only=True)
    log.write_bytes(whole)
    assert len(opened(folder, read_only=True)) == 3


def test_a_recovery_that_fails_forgets_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    with opened(folder) as index:
        index.insert(1, 1)
    with opened(folder), pytest.raises(FolderError, match="open"):
        opened(folder, recover=True)
    assert (folder / "closed").exists()


def test_a_snapshot_is_opened_without_its_log_on_request(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    with opened(folder) as index:
        index.insert([1, 2], [1, 2])
        index.checkpoint()
        index.insert(3, 3)
    (folder / "changes-1").unlink()
    with pytest.raises(FolderError, match="changes-1: is missing"):
        opened(folder)
    for _ in range(2):
        with opened(folder, recover=True) as index:
            assert dict(index.items()) == {1: 1, 2: 2}
    assert len(opened(folder)) == 2


def test_types_that_another_process_stores_meanwhile_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "index"
    opened(folder, value="float64").close()
    stored = durable._stored_types
    unseen = [None]
    monkeypatch.setattr(
        durable, "_stored_types", lambda path: unseen.pop() if unseen else stored(path)
    )
    with opened(folder) as index:
        assert index.value_dtype == np.float64
    (folder / "types.json").unlink()
    with pytest.raises(FolderError, match=r"has no types\.json: .* give key and value"):
        opened(folder, read_only=True)
    assert len(opened(folder, key="uint64", value="float64", read_only=True)) == 0


def test_rows_without_their_types_are_not_taken_for_integers(tmp_path: Path) -> None:
    """Floats of a folder made in C++ were read, and stored, as integers of the same bits."""
    folder = tmp_path / "index"
    with opened(folder, value="float64") as index:
        index.replace(7, 1.5)
    (folder / "types.json").unlink()
    for types in ({}, {"key": "uint64"}, {"value": "float64"}):
        with pytest.raises(FolderError, match=r"rows and no types\.json, .*: give key and value"):
            opened(folder, **types)
    with opened(folder, key="uint64", value="float64") as index:
        assert dict(index.items()) == {7: 1.5}
    assert opened(folder, read_only=True)[7] == 1.5


def test_a_folder_that_was_not_opened_is_not_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was as long as the error had a traceback: trying again said that it was open already."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(durable, "write_whole", refuse)
        with pytest.raises(FolderError, match="types.json: cannot be written: .*No space") as full:
            opened(tmp_path / "index")
    opened(tmp_path / "index").close()
    assert full.value.__traceback__ is not None


def test_a_scan_ends_where_the_rows_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside commits of another thread it had no more rows than there were when it began."""
    size = DurableIndex.__len__

    def size_before_a_commit(index: DurableIndex) -> int:
        count = size(index)
        index.insert([2, 3, 4], 0)
        return count

    with opened(tmp_path / "index") as index:
        index.insert(1, 1)
        with monkeypatch.context() as patched:
            patched.setattr(DurableIndex, "__len__", size_before_a_commit)
            keys, values = index.scan(0, 10)
        assert keys.tolist() == [1, 2, 3, 4]
        assert values.tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("change", ["replace", "insert"])
def test_a_snapshot_is_of_one_moment(tmp_path: Path, change: str) -> None:
    """It mixed rows from before and after a replacement, and waited for commits to pause."""
    count = 100_000  # more than a block of `range`
    keys = np.arange(count)
    with opened(tmp_path / "index", checkpoint_log_bytes=0) as index:
        index.replace(keys, np.zeros(count, int))
        ended = threading.Event()

        def change_all() -> None:
            for number in itertools.count(1):
                if ended.is_set():
                    return
                if change == "replace":
                    index.replace(keys, np.full(count, number))
                else:
                    index.insert(count + number, 0)

        thread = threading.Thread(target=change_all)
        thread.start()
        try:
            for _ in range(10):
                snapshot = index.snapshot()
                assert len(np.unique(snapshot.values())) == 1
        finally:
            ended.set()
            thread.join()


def test_other_threads_go_on_while_a_snapshot_is_written(tmp_path: Path) -> None:
    """Each call waited for its end: the lock was held as long."""
    keys = np.arange(1_000_000)

    def is_being_written() -> bool:
        return any(tmp_path.glob("snapshot-*.part"))

    with opened(tmp_path, checkpoint_log_bytes=0) as index:
        index.replace(keys, keys)
        for number in range(50):  # on a busy machine it may end before this thread goes on
            index.insert(0, number)
            thread = threading.Thread(target=index.checkpoint)
            thread.start()
            while thread.is_alive() and not is_being_written():
                pass
            value = index.get(0)
            beside = is_being_written()
            thread.join(HANG_S)
            assert value == number
            if beside:
                return
    pytest.fail("no call returned while a snapshot was written")


def test_a_child_has_a_reader_of_its_own(tmp_path: Path) -> None:
    """Its lock was held for ever where a thread of the parent was within a call at the fork."""
    keys = np.arange(200_000)
    writer = opened(tmp_path / "index")
    writer.replace(keys, keys)
    reader = opened(tmp_path / "index", read_only=True)
    ended = threading.Event()

    def call(name: str) -> None:
        while not ended.is_set():
            if name == "find":
                reader.find(keys)
            else:
                writer.insert(1, 1)
                reader.refresh()

    threads = [threading.Thread(target=call, args=(name,)) for name in ("find", "refresh")]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                signal.alarm(int(HANG_S))
                try:
                    reader.refresh()
                    os._exit(0 if reader.get(5) == 5 else 1)
                finally:
                    os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        writer.close()


def test_unsynced_groups_that_a_failure_damaged_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    kill_after_commits(folder)
    log = folder / "changes-0"
    log.write_bytes(with_byte_changed(log.read_bytes()))
    with pytest.raises(FolderError, match="is damaged; .* open with recover=True"):
        opened(folder)
    with opened(folder, recover=True) as index:
        assert 5 < index.groups < 45
        assert index.keys().tolist() == list(range(-index.groups, index.groups))


def test_children_of_forks_leave_it_to_their_parent(tmp_path: Path) -> None:
    with opened(tmp_path / "index") as index:
        index[1] = 2
        child = os.fork()
        if child == 0:
            try:
                index.get(1)
                os._exit(1)
            except ForkError:
                index.close()
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        index[2] = 3
        assert dict(index.items()) == {1: 2, 2: 3}


def test_files_of_others_stay(tmp_path: Path) -> None:
    """An opening removed all whose names end with ".part": an unfinished download, for example."""
    others, own = ("film.part", "changes.part", "types.json.part"), ("changes-1.part",)
    for name in (*others, *own):
        (tmp_path / name).write_bytes(b"1")
    opened(tmp_path).close()
    assert [name for name in (*others, *own) if (tmp_path / name).exists()] == [*others]


def test_a_log_that_cannot_be_read_is_no_shorter_one(tmp_path: Path) -> None:
    """Changes behind an error of the disk were lost, and no error was raised."""
    unreadable = Path("/sys/class/net/lo/speed")  # 4096 bytes, as far as its status tells
    if not unreadable.exists():
        pytest.skip("this system has no file whose reading fails")
    (tmp_path / "changes-0").symlink_to(unreadable)
    with pytest.raises(FolderError, match="cannot read .*changes-0: Invalid argument"):
        opened(tmp_path, read_only=True, key="int64", value="float64")


def test_threads_share_a_batch(tmp_path: Path) -> None:
    """Changes of several threads were written to the same memory at once: a crash."""
    keys = np.arange(20_000)
    with opened(tmp_path / "index") as index:
        batch = index.batch()

        def insert() -> None:
            for _ in range(10):
                batch.insert(keys, keys)

        threads = [threading.Thread(target=insert) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        assert len(batch) == 40 * len(keys)
        batch.commit()
        assert index.groups == 1
        assert np.array_equal(index.keys(), keys)


def insert_and_fail(index: DurableIndex) -> None:
    with index.batch() as batch:
        batch.insert(1, 7)
        raise ZeroDivisionError


WRONG: list[tuple[Callable[[DurableIndex], Any], str]] = [
    (lambda i: i.insert([1, -1], 5), "number 1 is -1, which uint64 does not hold"),
    (lambda i: i.insert([1, 2], [5]), "values are 1, keys 2"),
    (lambda i: i.insert("a", 1), "strings: number them"),
    (lambda i: i.insert(1, None), "values are missing"),
    (lambda i: i.scan(0, -1), "count is -1"),
    (lambda i: i.scan(0, 1.5), "count is 1.5, needs an integer of at least 0"),  # pyright: ignore
    (lambda i: list(i.blocks(size=1.5)), "size is 1.5, needs an integer"),  # pyright: ignore
    (lambda i: i.get((1, 2)), r"keys are the tuple \(1, 2\), needs a key, or a list"),
    (lambda i: i.insert((1, 2), 3), r"keys are the tuple \(1, 2\), needs a key, or a list"),
    (lambda i: i.get([[1], [2, 3]]), "keys: setting an array element"),
    (lambda i: [1] in i, "key is .1., needs one key: `contains` takes arrays"),
    (lambda i: i.range("a"), "key is 'a', needs an integer"),
    (lambda i: list(i.blocks(size=0)), "size is 0"),
    (lambda i: headrace.index.open(i.path, key="int32"), "key is int32, needs one of uint64"),
    (lambda i: headrace.index.open(i.path, checkpoint_log_bytes=-1), "checkpoint_log_bytes is -1"),
    (lambda i: opened(i.path, checkpoint_log_bytes="64MiB"), "needs an integer of at least 0"),
    (lambda i: headrace.index.open(i.path, read_only=True, recover=True), "without read_only"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_cannot_be_done_is_refused(
    tmp_path: Path, call: Callable[[DurableIndex], Any], message: str
) -> None:
    with opened(tmp_path / "index") as index:
        index[1] = 2
        with pytest.raises(KeysError, match=message):
            call(index)
        with pytest.raises(KeyError):
            index[3]
        with pytest.raises(KeyError):
            del index[3]
        with pytest.raises(ZeroDivisionError):
            insert_and_fail(index)
        assert dict(index.items()) == {1: 2}
        assert [keys.tolist() for keys, _ in index.blocks(size=1 << 60)] == [[1]]
        assert (1, 2) not in index
        assert (1, (2, 3)) not in index
        assert index.groups == 1


def test_folders_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="the name of the folder is empty"):  # the working folder
        opened("")  # type: ignore[arg-type]
    with pytest.raises(FolderError, match="absent"):
        opened(tmp_path / "absent", read_only=True)
    with pytest.raises(FolderError, match="absent"):
        opened(tmp_path / "absent" / "index")
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match="file: is a file, needs a folder"):
        opened(tmp_path / "file")
    with opened(tmp_path / "index"):
        pass
    (tmp_path / "index" / "types.json").write_text("{}")
    with pytest.raises(FolderError, match=r"types.json: is not the file of types"):
        opened(tmp_path / "index")
