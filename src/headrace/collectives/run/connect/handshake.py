"""How two ranks of a job prove to each other that they know its secret: pure functions of bytes.

Four messages of fixed length::

    hello      from the dialler   what the connection is for, a nonce, MAC
    challenge  from the acceptor  whether it listens locally, a nonce, MAC
    proof      from the dialler   MAC
    welcome    from the acceptor  MAC

Each MAC is HMAC-SHA256, with the secret as key, of the message's name and of all that has gone over
the connection up to it. So a message fits one place of one conversation only: the name forbids
sending it back to whoever made it, the nonces sending it again later, what the connection is for
(ranks, channel, kind of socket) passing it on to another one. The proof makes sure of the dialler,
the challenge of the acceptor. The hello's MAC can be replayed, and is not what lets anybody in: it
tells strangers from ranks at the first message, so that the former can be dropped first. Nothing
is parsed before its MAC has been checked.

Where the connection goes on in TLS, the key for that is one more such MAC, which is not sent: of
all that was said, both nonces included. So it is new for every connection, and both ends have it.
"""

import hmac
import secrets
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

CONTROL_CHANNEL = -2
"""As in native/transport/wire.hpp; data channels count from 0."""
POINT_TO_POINT_CHANNEL = -1

_MAGIC = b"headrac4"
_NONCE_BYTES = 32
_MAC_BYTES = 32
_HELLO = struct.Struct(f"<8sIIIi??{_NONCE_BYTES}s")
_CHALLENGE = struct.Struct(f"<?{_NONCE_BYTES}s")

HELLO_BYTES = _HELLO.size + _MAC_BYTES
CHALLENGE_BYTES = _CHALLENGE.size + _MAC_BYTES
PROOF_BYTES = _MAC_BYTES
WELCOME_BYTES = _MAC_BYTES


class Refused(Exception):  # noqa: N818 - the outcome of a handshake, not a failure of ours
    """The other side is a stranger, or asks for what it cannot have; the message says which."""


class Purpose(NamedTuple):
    """What a connection is for: both sides have to agree on all of it.

    Attributes
    ----------
    ranks : size of the group.
    dialler, acceptor : the two ranks; the higher one dials.
    channel : CONTROL_CHANNEL, POINT_TO_POINT_CHANNEL, or a data channel from 0.
    local : whether it is a connection inside one host (an AF_UNIX socket).
    tls : whether the group's connections between hosts go on in TLS.
    """

    ranks: int
    dialler: int
    acceptor: int
    channel: int
    local: bool
    tls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rank, as those who connect with it have to know it.

    Attributes
    ----------
    secret : known to the ranks of this group only.
    rank, ranks, channels : this rank, the size of the group, data channels per pair of ranks.
    listens_locally : whether it accepts connections inside its host.
    tls : whether connections between hosts go on in TLS.
    """

    secret: bytes = field(repr=False)
    rank: int
    ranks: int
    channels: int
    listens_locally: bool
    tls: bool = False


class Dialler:
    """The side that dials.

    Attributes
    ----------
    hello : the first message.
    peer_listens_locally : what the acceptor said about itself; known once `prove` has returned.
    """

    def __init__(self, secret: bytes, purpose: Purpose) -> None:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self._secret = secret
        self._said = b""
        self.hello = self._say(b"hello", _HELLO.pack(_MAGIC, *purpose, nonce))
        self.peer_listens_locally = False

    def prove(self, challenge: bytes) -> bytes:
        """Answer the challenge with the proof.

        Raises
        ------
        Refused : whoever sent the challenge does not know the secret.
        """
        body = self._heard(b"challenge", challenge)
        self.peer_listens_locally, _ = _CHALLENGE.unpack(body)
        return self._say(b"proof", b"")

    def finish(self, welcome: bytes) -> None:
        """Check the last message; raises `Refused` like `prove`."""
        self._heard(b"welcome", welcome)

    def tls_key(self) -> bytes:
        """The key of this connection, once `finish` has returned."""
        return _tls_key(self._secret, self._said)

    def _say(self, name: bytes, body: bytes) -> bytes:
        message = body + _mac(self._secret, name, self._said + body)
        self._said += message
        return message

    def _heard(self, name: bytes, message: bytes) -> bytes:
        body = _checked(self._secret, name, self._said, message)
        self._said += message
        return body


class Acceptor:
    """The side that was dialled.

    Parameters
    ----------
    own : this rank.
    local : whether the connection came in through the local listener.

    Attributes
    ----------
    purpose : what the connection is for; known once `challenge` has returned, to be believed once
        `welcome` has.
    """

    def __init__(self, own: Member, *, local: bool) -> None:
        self._own = own
        self._local = local
        self._said = b""
        self.purpose = Purpose(own.ranks, -1, own.rank, CONTROL_CHANNEL, local)

    def challenge(self, hello: bytes) -> bytes:
        """Answer the hello with the challenge.

        Raises
        ------
        Refused : whoever sent it does not know the secret, or dialled the wrong rank or channel.
        """
        own = self._own
        magic, *fields, _ = _HELLO.unpack(_checked(own.secret, b"hello", b"", hello))
        purpose = Purpose(*fields)
        if magic != _MAGIC:
            raise Refused("speaks another version of the protocol")
        if purpose.tls != own.tls:
            has, wants = ("TLS", "none") if own.tls else ("no TLS", "it")
            raise Refused(f"wanted {wants} where this group has {has}: set it alike for all ranks")
        offered = Purpose(
            own.ranks, purpose.dialler, own.rank, purpose.channel, self._local, own.tls
        )
        if purpose != offered or not own.rank < purpose.dialler < own.ranks:
            raise Refused(f"wanted another rank than {own.rank} of {own.ranks}: {purpose}")
        if not CONTROL_CHANNEL <= purpose.channel < own.channels:
            raise Refused(f"wanted channel {purpose.channel} of {own.channels} data channels")
        self.purpose = purpose
        body = _CHALLENGE.pack(own.listens_locally, secrets.token_bytes(_NONCE_BYTES))
        message = body + _mac(own.secret, b"challenge", hello + body)
        self._said = hello + message
        return message

    def welcome(self, proof: bytes) -> bytes:
        """Answer the proof with the welcome.

        Raises
        ------
        Refused : whoever sent it does not know the secret.
        """
        _checked(self._own.secret, b"proof", self._said, proof)
        welcome = _mac(self._own.secret, b"welcome", self._said + proof)
        self._said += proof + welcome
        return welcome

    def tls_key(self) -> bytes:
        """The key of this connection, once `welcome` has returned."""
        return _tls_key(self._own.secret, self._said)


def local_name(secret: bytes, address: str) -> bytes:
    """Abstract AF_UNIX name of the rank that listens at `address`.

    Abstract names belong to a network namespace, as addresses do: who finds a listener under this
    one is on the same host. As the name follows from the secret, nobody else can take it first.
    """
    mac = hmac.digest(secret, b"local name\0" + address.encode(), "sha256")
    return b"\0headrace/" + mac.hex().encode()


def _tls_key(secret: bytes, said: bytes) -> bytes:
    return _mac(secret, b"key for TLS", said)


def _mac(secret: bytes, name: bytes, said: bytes) -> bytes:
    # unambiguous: no name has a zero byte, and what follows is of one length for each name
    return hmac.digest(secret, name + b"\0" + said, "sha256")


def _checked(secret: bytes, name: bytes, said: bytes, message: bytes) -> bytes:
    """Return the body of `message`, which came after `said`, if its MAC is right."""
    body, mac = message[:-_MAC_BYTES], message[-_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(secret, name, said + body)):
        raise Refused(f"does not know this job's secret (its {name.decode()} is wrong)")
    return body
