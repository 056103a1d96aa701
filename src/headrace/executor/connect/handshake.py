"""Mutual challenge-response authentication of two ranks by a shared secret: pure functions.

Between hosts, four messages of fixed length::

    hello      from the dialler   purpose of the connection, a nonce, MAC
    challenge  from the acceptor  whether it listens locally, a nonce, MAC
    proof      from the dialler   MAC
    welcome    from the acceptor  MAC

Each MAC is HMAC-SHA256, with the secret as key, of the message's name and of the transcript: all
bytes of the handshake before it. So a message is valid at one place of one handshake only: the name
prevents reflection to its sender, the nonces replay, the purpose (ranks, channel, kind of socket)
relaying to another connection. The proof authenticates the dialler, the challenge the acceptor. The
hello's MAC can be replayed and admits no peer: it separates unauthenticated peers from ranks at the
first message, so that the former can be dropped first. No message is parsed before its MAC has been
checked.

Inside a host two messages suffice, hello and welcome. Their transcript begins with the addresses of
all ranks, which are new for every group and known to its ranks before they connect: these take the
place of the acceptor's nonce. So a hello is valid for one group only, in which every dialler is
admitted once; and there is no network on which it could be overheard and be sent first by another
peer.

Where the connection continues in TLS, its pre-shared key is one more such MAC, which is not sent,
of the whole transcript, both nonces included. So it is new for every connection, and known to both
ends.
"""

import hmac
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

CONTROL_CHANNEL = -2
"""As in native/transport/wire.hpp; data channels count from 0."""
POINT_TO_POINT_CHANNEL = -1

_MAGIC = b"headrac5"
_NONCE_BYTES = 32
_MAC_BYTES = 32
_HELLO = struct.Struct(f"<8sIIIi??{_NONCE_BYTES}s")
_CHALLENGE = struct.Struct(f"<?{_NONCE_BYTES}s")

HELLO_BYTES = _HELLO.size + _MAC_BYTES
CHALLENGE_BYTES = _CHALLENGE.size + _MAC_BYTES
PROOF_BYTES = _MAC_BYTES
WELCOME_BYTES = _MAC_BYTES


class Refused(Exception):  # noqa: N818 - the outcome of a handshake, not a failure of ours
    """The peer is not authenticated, or its request is invalid; the message names which."""


class Purpose(NamedTuple):
    """Purpose of a connection; both sides have to agree on every field.

    Attributes
    ----------
    ranks : size of the group.
    dialler, acceptor : the two ranks; the higher one dials.
    channel : CONTROL_CHANNEL, POINT_TO_POINT_CHANNEL, or a data channel from 0.
    local : whether it is a connection inside one host (an AF_UNIX socket).
    tls : whether the group's connections between hosts continue in TLS.
    """

    ranks: int
    dialler: int
    acceptor: int
    channel: int
    local: bool
    tls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One rank's parameters of connection set-up.

    Attributes
    ----------
    secret : known to the ranks of this group only.
    rank, ranks, channels : this rank, the size of the group, data channels per pair of ranks.
    memory_bytes : size of the memory that two ranks of one host share; the same on all ranks.
    listens_locally : whether it accepts connections inside its host.
    tls : whether connections between hosts continue in TLS.
    """

    secret: bytes = field(repr=False)
    rank: int
    ranks: int
    channels: int
    memory_bytes: int
    listens_locally: bool
    tls: bool = False


class _Transcript:
    """One side's account of a handshake: all its bytes so far."""

    def __init__(self, secret: bytes, beginning: bytes = b"") -> None:
        self._secret = secret
        self._so_far = beginning

    def tls_key(self) -> bytes:
        """Return the TLS key of this connection, once the handshake has ended."""
        return self._mac(b"key for TLS")

    def _sign(self, name: bytes, body: bytes = b"") -> bytes:
        """Return the next message; it is this side's."""
        message = body + self._mac(name, body)
        self._so_far += message
        return message

    def _verify(self, name: bytes, message: bytes) -> bytes:
        """Return the body of the next message, the other side's, if its MAC is valid."""
        body, mac = message[:-_MAC_BYTES], message[-_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(name, body)):
            raise Refused(f"does not know this job's secret (its {name.decode()} is wrong)")
        self._so_far += message
        return body

    def _mac(self, name: bytes, body: bytes = b"") -> bytes:
        # unambiguous: no name has a zero byte, and the transcript has one length for each name
        # after its beginning, which is fixed
        return hmac.digest(self._secret, name + b"\0" + self._so_far + body, "sha256")


class LocalDialler(_Transcript):
    """Dialling side of a handshake inside a host.

    Parameters
    ----------
    addresses : of all ranks, see `group_addresses`.

    Attributes
    ----------
    hello : the first message.
    """

    def __init__(self, secret: bytes, purpose: Purpose, addresses: bytes) -> None:
        super().__init__(secret, addresses)
        self.hello = self._sign(b"local hello", _hello(purpose))

    def finish(self, welcome: bytes) -> None:
        """Check the last message.

        Raises
        ------
        Refused : its sender does not know the secret.
        """
        self._verify(b"welcome", welcome)


class Dialler(_Transcript):
    """Dialling side of a handshake between hosts.

    Attributes
    ----------
    hello : the first message.
    peer_listens_locally : as in the acceptor's challenge; known once `prove` has returned.
    """

    def __init__(self, secret: bytes, purpose: Purpose) -> None:
        super().__init__(secret)
        self.hello = self._sign(b"hello", _hello(purpose))
        self.peer_listens_locally = False

    def prove(self, challenge: bytes) -> bytes:
        """Return the proof that answers the challenge.

        Raises
        ------
        Refused : the sender of the challenge does not know the secret.
        """
        body = self._verify(b"challenge", challenge)
        self.peer_listens_locally, _ = _CHALLENGE.unpack(body)
        return self._sign(b"proof")

    def finish(self, welcome: bytes) -> None:
        """Check the last message; raises `Refused` like `prove`."""
        self._verify(b"welcome", welcome)


class LocalAcceptor(_Transcript):
    """Accepting side of a handshake inside a host.

    Parameters
    ----------
    own : this rank.
    addresses : of all ranks, see `group_addresses`.

    Attributes
    ----------
    purpose : of the connection; authenticated once `welcome` has returned.
    """

    def __init__(self, own: GroupMember, addresses: bytes) -> None:
        super().__init__(own.secret, addresses)
        self._own = own
        self.purpose = Purpose(own.ranks, -1, own.rank, CONTROL_CHANNEL, local=True)

    def welcome(self, hello: bytes) -> bytes:
        """Return the welcome that answers the hello.

        Raises
        ------
        Refused : its sender does not know the secret, or dialled the wrong rank or channel.
        """
        self.purpose = _admitted(self._own, self._verify(b"local hello", hello), local=True)
        return self._sign(b"welcome")


class Acceptor(_Transcript):
    """Accepting side of a handshake between hosts.

    Attributes
    ----------
    purpose : of the connection; known once `challenge` has returned, authenticated once `welcome`
        has.
    """

    def __init__(self, own: GroupMember) -> None:
        super().__init__(own.secret)
        self._own = own
        self.purpose = Purpose(own.ranks, -1, own.rank, CONTROL_CHANNEL, local=False)

    def challenge(self, hello: bytes) -> bytes:
        """Return the challenge that answers the hello.

        Raises
        ------
        Refused : its sender does not know the secret, or dialled the wrong rank or channel.
        """
        self.purpose = _admitted(self._own, self._verify(b"hello", hello), local=False)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return self._sign(b"challenge", _CHALLENGE.pack(self._own.listens_locally, nonce))

    def welcome(self, proof: bytes) -> bytes:
        """Return the welcome that answers the proof.

        Raises
        ------
        Refused : its sender does not know the secret.
        """
        self._verify(b"proof", proof)
        return self._sign(b"welcome")


def _hello(purpose: Purpose) -> bytes:
    return _HELLO.pack(_MAGIC, *purpose, secrets.token_bytes(_NONCE_BYTES))


def _admitted(own: GroupMember, hello: bytes, *, local: bool) -> Purpose:
    """Return the purpose that a hello states; raises Refused if it is none of `own`'s."""
    magic, *fields, _ = _HELLO.unpack(hello)
    purpose = Purpose(*fields)
    if magic != _MAGIC:
        raise Refused("uses another version of the protocol")
    if purpose.tls != own.tls:
        has, wants = ("TLS", "none") if own.tls else ("no TLS", "it")
        raise Refused(f"wants {wants} where this group has {has}: set it alike for all ranks")
    offered = Purpose(own.ranks, purpose.dialler, own.rank, purpose.channel, local, own.tls)
    if purpose != offered or not own.rank < purpose.dialler < own.ranks:
        raise Refused(f"dialled another rank than {own.rank} of {own.ranks}: {purpose}")
    if not CONTROL_CHANNEL <= purpose.channel < own.channels:
        raise Refused(f"requested channel {purpose.channel} of {own.channels} data channels")
    return purpose


def group_addresses(addresses: Sequence[str]) -> bytes:
    """Return the addresses of all ranks, by rank, as handshakes inside a host begin with them."""
    return "\n".join(addresses).encode()


def local_name(secret: bytes, address: str) -> bytes:
    """Return the abstract AF_UNIX name of the rank that listens at `address`.

    Abstract names belong to a network namespace, as addresses do: a listener under this name is on
    the same host. As the name is derived from the secret, no other process can take it first.
    """
    mac = hmac.digest(secret, b"local name\0" + address.encode(), "sha256")
    return b"\0headrace/" + mac.hex().encode()
