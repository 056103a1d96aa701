"""The handshake's bytes: peers that know the secret agree, and nothing else gets through."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.executor.connect.handshake import (
    CHALLENGE_BYTES,
    CONTROL_CHANNEL,
    HELLO_BYTES,
    PROOF_BYTES,
    WELCOME_BYTES,
    Acceptor,
    Dialler,
    GroupMember,
    LocalAcceptor,
    LocalDialler,
    Purpose,
    Refused,
    group_addresses,
    local_name,
)

SECRET = b"00112233445566778899aabbccddeeff"
RANKS, CHANNELS = 4, 2
PURPOSE = Purpose(RANKS, 3, 1, 0, False)
OWN = GroupMember(
    secret=SECRET, rank=1, ranks=RANKS, channels=CHANNELS, memory_bytes=8192, listens_locally=True
)

LOCAL = PURPOSE._replace(local=True)
ADDRESSES = group_addresses([f"127.0.0.1:{4000 + rank}" for rank in range(RANKS)])

Change = Callable[[bytes], bytes]


def same(message: bytes) -> bytes:
    return message


def converse(change: dict[str, Change], dialler: Dialler, acceptor: Acceptor) -> list[bytes]:
    """A whole handshake, with some messages changed on their way; the messages."""
    hello = change.get("hello", same)(dialler.hello)
    challenge = change.get("challenge", same)(acceptor.challenge(hello))
    proof = change.get("proof", same)(dialler.prove(challenge))
    welcome = change.get("welcome", same)(acceptor.welcome(proof))
    dialler.finish(welcome)
    return [hello, challenge, proof, welcome]


def test_two_peers_with_the_secret_agree_on_what_the_connection_is_for() -> None:
    dialler, acceptor = Dialler(SECRET, PURPOSE), Acceptor(OWN)
    messages = converse({}, dialler, acceptor)
    assert acceptor.purpose == PURPOSE
    assert dialler.peer_listens_locally
    sizes = [HELLO_BYTES, CHALLENGE_BYTES, PROOF_BYTES, WELCOME_BYTES]
    assert [len(message) for message in messages] == sizes


def test_the_secret_is_not_shown() -> None:
    assert "rank=1" in repr(OWN)
    assert SECRET.decode() not in repr(OWN)


def test_no_two_handshakes_have_a_message_in_common() -> None:
    rounds = [converse({}, Dialler(SECRET, PURPOSE), Acceptor(OWN)) for _ in range(9)]
    assert len({message for messages in rounds for message in messages}) == 9 * 4


def test_every_connection_has_a_key_of_its_own_which_is_not_sent() -> None:
    keys = set()
    for _ in range(9):
        dialler, acceptor = Dialler(SECRET, PURPOSE), Acceptor(OWN)
        messages = converse({}, dialler, acceptor)
        assert dialler.tls_key() == acceptor.tls_key()
        assert len(dialler.tls_key()) == 32
        assert not any(dialler.tls_key() in message for message in messages)
        keys.add(dialler.tls_key())
    assert len(keys) == 9


@given(st.sampled_from(["hello", "challenge", "proof", "welcome"]), st.data())
def test_any_flipped_bit_fails(which: str, data: st.DataObject) -> None:
    def flipped(message: bytes) -> bytes:
        bit = data.draw(st.integers(0, 8 * len(message) - 1))
        changed = bytearray(message)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    with pytest.raises(Refused):
        converse({which: flipped}, Dialler(SECRET, PURPOSE), Acceptor(OWN))


@given(st.sampled_from(["hello", "challenge", "proof", "welcome"]), st.binary(max_size=300))
def test_garbage_of_any_length_fails(which: str, garbage: bytes) -> None:
    with pytest.raises(Refused):
        converse({which: lambda _: garbage}, Dialler(SECRET, PURPOSE), Acceptor(OWN))


@pytest.mark.parametrize(
    ("dialler_secret", "acceptor_secret"), [(SECRET, b"other"), (b"other", SECRET), (b"", SECRET)]
)
def test_another_secret_fails_at_the_first_message(
    dialler_secret: bytes, acceptor_secret: bytes
) -> None:
    acceptor = Acceptor(replace(OWN, secret=acceptor_secret))
    with pytest.raises(Refused, match="does not know this job's secret"):
        acceptor.challenge(Dialler(dialler_secret, PURPOSE).hello)


def test_without_the_secret_no_peer_can_play_the_acceptor() -> None:
    dialler = Dialler(SECRET, PURPOSE)
    impostor = Dialler(b"other", PURPOSE)  # its messages are as long, and as good as any
    for message in (impostor.hello, dialler.hello, bytes(CHALLENGE_BYTES)):
        with pytest.raises(Refused):
            dialler.prove(message[:CHALLENGE_BYTES])


def test_no_message_serves_in_the_place_of_another() -> None:
    """Reflection: what one side says is not what the other one could have said."""
    hello, challenge, proof, welcome = converse({}, Dialler(SECRET, PURPOSE), Acceptor(OWN))
    for reflected in (hello[-PROOF_BYTES:], challenge[-PROOF_BYTES:], welcome):
        acceptor = Acceptor(OWN)
        acceptor.challenge(hello)
        with pytest.raises(Refused):
            acceptor.welcome(reflected)
    dialler, acceptor = Dialler(SECRET, PURPOSE), Acceptor(OWN)
    own_proof = dialler.prove(acceptor.challenge(dialler.hello))
    for reflected in (own_proof, proof):
        with pytest.raises(Refused):
            dialler.finish(reflected)


def test_a_replayed_handshake_ends_at_the_proof() -> None:
    hello, challenge, proof, _ = converse({}, Dialler(SECRET, PURPOSE), Acceptor(OWN))
    acceptor = Acceptor(OWN)
    acceptor.challenge(hello)  # a hello can be said again, and gains nothing
    with pytest.raises(Refused):
        acceptor.welcome(proof)
    with pytest.raises(Refused):
        Dialler(SECRET, PURPOSE).prove(challenge)


def test_proofs_of_two_handshakes_cannot_be_exchanged() -> None:
    purposes = [PURPOSE, PURPOSE._replace(channel=1), PURPOSE._replace(dialler=2), PURPOSE]
    diallers = [Dialler(SECRET, purpose) for purpose in purposes]
    acceptors = [Acceptor(OWN) for _ in purposes]
    challenges = [a.challenge(d.hello) for a, d in zip(acceptors, diallers, strict=True)]
    proofs = [d.prove(c) for d, c in zip(diallers, challenges, strict=True)]
    for mine, acceptor in enumerate(acceptors):
        for theirs, proof in enumerate(proofs):
            if mine != theirs:
                with pytest.raises(Refused):
                    acceptor.welcome(proof)
    for acceptor, dialler, proof in zip(acceptors, diallers, proofs, strict=True):
        dialler.finish(acceptor.welcome(proof))


NUMBERS = st.integers(0, 6) | st.integers(0, 2**32 - 1)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "ranks": NUMBERS,
        "dialler": NUMBERS,
        "acceptor": NUMBERS,
        "channel": st.integers(-4, 4) | st.integers(-(2**31), 2**31 - 1),
        "local": st.booleans(),
        "tls": st.booleans(),
    },
)


@given(CHANGES)
@example({"dialler": 1})  # itself
@example({"dialler": 0})  # the dialled rank
@example({"dialler": RANKS})
@example({"channel": CHANNELS})
@example({"channel": CONTROL_CHANNEL - 1})
@example({"local": True})
@example({"tls": True})
def test_even_peers_with_the_secret_get_only_what_is_there(changes: dict[str, Any]) -> None:
    purpose = PURPOSE._replace(**changes)
    acceptor = Acceptor(OWN)
    possible = (
        (purpose.ranks, purpose.acceptor, purpose.local, purpose.tls) == (RANKS, 1, False, False)
        and 1 < purpose.dialler < RANKS
        and CONTROL_CHANNEL <= purpose.channel < CHANNELS
    )
    if possible:
        converse({}, Dialler(SECRET, purpose), acceptor)
    else:
        with pytest.raises(Refused, match="wants |dialled another rank|requested channel"):
            acceptor.challenge(Dialler(SECRET, purpose).hello)


def test_inside_a_host_two_messages_suffice() -> None:
    dialler, acceptor = LocalDialler(SECRET, LOCAL, ADDRESSES), LocalAcceptor(OWN, ADDRESSES)
    dialler.finish(acceptor.welcome(dialler.hello))
    assert acceptor.purpose == LOCAL


@given(st.integers(0, 8 * HELLO_BYTES - 1), st.integers(0, 8 * WELCOME_BYTES - 1))
def test_inside_a_host_any_flipped_bit_fails(in_hello: int, in_welcome: int) -> None:
    def flipped(message: bytes, bit: int) -> bytes:
        changed = bytearray(message)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    dialler = LocalDialler(SECRET, LOCAL, ADDRESSES)
    with pytest.raises(Refused, match="does not know this job's secret"):
        LocalAcceptor(OWN, ADDRESSES).welcome(flipped(dialler.hello, in_hello))
    welcome = LocalAcceptor(OWN, ADDRESSES).welcome(dialler.hello)
    with pytest.raises(Refused, match="does not know this job's secret"):
        dialler.finish(flipped(welcome, in_welcome))


@pytest.mark.parametrize(
    ("secret", "addresses"), [(b"other", ADDRESSES), (SECRET, ADDRESSES[:-1]), (SECRET, b"")]
)
def test_inside_a_host_a_hello_is_valid_in_one_group_only(secret: bytes, addresses: bytes) -> None:
    hello = LocalDialler(secret, LOCAL, addresses).hello
    with pytest.raises(Refused, match="does not know this job's secret"):
        LocalAcceptor(OWN, ADDRESSES).welcome(hello)


def test_a_hello_from_inside_a_host_is_none_between_hosts_and_the_reverse() -> None:
    with pytest.raises(Refused, match="its hello is wrong"):
        Acceptor(OWN).challenge(LocalDialler(SECRET, LOCAL, ADDRESSES).hello)
    with pytest.raises(Refused, match="its hello is wrong"):
        Acceptor(OWN).challenge(LocalDialler(SECRET, PURPOSE, b"").hello)
    with pytest.raises(Refused, match="its local hello is wrong"):
        LocalAcceptor(OWN, b"").welcome(Dialler(SECRET, PURPOSE).hello)


def test_a_welcome_answers_one_hello_only() -> None:
    first, second = (LocalDialler(SECRET, LOCAL, ADDRESSES) for _ in range(2))
    welcome = LocalAcceptor(OWN, ADDRESSES).welcome(first.hello)
    with pytest.raises(Refused, match="its welcome is wrong"):
        second.finish(welcome)


@given(CHANGES)
@example({"local": False})
@example({"tls": True})
def test_inside_a_host_peers_with_the_secret_get_only_what_is_there(
    changes: dict[str, Any],
) -> None:
    purpose = LOCAL._replace(**changes)
    acceptor = LocalAcceptor(OWN, ADDRESSES)
    possible = (
        (purpose.ranks, purpose.acceptor, purpose.local, purpose.tls) == (RANKS, 1, True, False)
        and 1 < purpose.dialler < RANKS
        and CONTROL_CHANNEL <= purpose.channel < CHANNELS
    )
    hello = LocalDialler(SECRET, purpose, ADDRESSES).hello
    if possible:
        acceptor.welcome(hello)
    else:
        with pytest.raises(Refused, match="wants |dialled another rank|requested channel"):
            acceptor.welcome(hello)


def test_local_names_follow_from_secret_and_address_and_fit_a_socket() -> None:
    names = {
        local_name(secret, address)
        for secret in (SECRET, b"other")
        for address in ("127.0.0.1:4000", "127.0.0.1:4001", f"[{'f' * 39}%{'x' * 15}]:65535")
    }
    assert len(names) == 6
    assert all(name[0] == 0 and len(name) < 108 for name in names)
    assert local_name(SECRET, "127.0.0.1:4000") in names
