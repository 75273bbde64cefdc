"""The handshake of systems whose directory lists the keys of every node: Hello, then Welcome.

The caller sends its name, the name of the node that it calls, instance and epoch. The called node
answers with a nonce and a MAC that authenticates it; the caller is authenticated by its first
sealed packet. Until then it can neither displace a live connection nor make a machine hear of it.

A refusal is a `Farewell` with one sentence for the user. It is not authenticated: a node only reads
its own directory again, or examines the proof of a newer epoch that the farewell may carry.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec

from quorumcast.core import limits
from quorumcast.core.ids import NodeId
from quorumcast.crypto.identity import derive
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.mac import Mac, same
from quorumcast.crypto.session import (
    NONCE_SIZE,
    PROTOCOL,
    Family,
    Farewell,
    Hello,
    Session,
    Welcome,
    make_session,
    welcome_mac,
)
from quorumcast.runtime.links.contract import Greeting
from quorumcast.runtime.links.limits import MAX_PROOF_BYTES

#: A greeting frame longer than this is refused unread.
MAX_GREETING_BYTES = 2048
#: … unless we called: the answer may be a farewell with a proof in it.
MAX_ANSWER_BYTES = MAX_GREETING_BYTES + MAX_PROOF_BYTES
#: Characters of a peer's sentence that are shown.
MAX_SENTENCE = 300

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Greeting)


def encode_greeting(greeting: Greeting) -> bytes:
    """One frame, without its length."""
    return _encode(greeting)


def decode_greeting(frame: bytes) -> Greeting | None:
    """The greeting in a frame, or None if it is not one."""
    try:
        greeting: Greeting = _decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return greeting


def sentence_of(farewell: Farewell) -> str:
    """What a farewell says, made safe for a terminal and a log."""
    return "".join(c for c in farewell.reason[:MAX_SENTENCE] if c.isprintable())


class Greeter:
    """Makes and answers the greetings of one node in one epoch."""

    __slots__ = ("_family", "_keyring", "_left", "_nonce", "_shown")

    def __init__(
        self,
        keyring: Keyring,
        family: Family,
        nonce: Callable[[], bytes] = lambda: secrets.token_bytes(NONCE_SIZE),
        proof: Callable[[], bytes] = lambda: b"",
    ) -> None:
        self._keyring = keyring
        self._family = family
        self._nonce = nonce
        #: Returns the proof for nodes in an older epoch that this one was decided.
        self._shown = proof
        #: The epoch in which this node is no longer a member; 0 if it is one.
        self._left = 0

    def leave(self, epoch: int) -> None:
        """Refuse every greeting from now on: that epoch does not list us."""
        self._left = epoch

    @property
    def name(self) -> NodeId:
        """Our own name."""
        return self._keyring.identity.name

    @property
    def epoch(self) -> int:
        """The epoch of our directory."""
        return self._keyring.epoch

    def decode(self, frame: bytes) -> Greeting | None:
        """The greeting in a frame, or None if it is not one."""
        return decode_greeting(frame)

    def hello(self, to: NodeId) -> Hello:
        """Our greeting to a peer."""
        keyring = self._keyring
        return Hello(PROTOCOL, keyring.instance, keyring.epoch, self.name, to, self._nonce())

    def answer(self, hello: Hello) -> tuple[Welcome, Session] | Farewell:
        """A welcome and the session that follows from it, or a refusal."""
        refusal = self._refusal(hello)
        if refusal is not None:
            epoch = self._left or self._keyring.epoch
            late = hello.instance == self._keyring.instance and hello.epoch < epoch
            return Farewell(refusal, epoch, self._shown() if late else b"")
        secret = self._keyring.secret(hello.sender)
        nonce = self._nonce()
        session = self._session(secret, hello, nonce, caller=False)
        return Welcome(nonce, welcome_mac(hello, nonce, self._proof(secret))), session

    def conclude(self, hello: Hello, welcome: Welcome) -> Session | None:
        """The caller's session, or None if the answer is not from the node that we called."""
        secret = self._keyring.secret(hello.to)
        expected = welcome_mac(hello, welcome.nonce, self._proof(secret))
        if len(welcome.nonce) != NONCE_SIZE or not same(welcome.mac, expected):
            return None
        return self._session(secret, hello, welcome.nonce, caller=True)

    def _session(self, secret: bytes, hello: Hello, nonce: bytes, *, caller: bool) -> Session:
        factory = self._keyring.factory
        return make_session(secret, factory, hello, nonce, self._family, caller=caller)

    def _proof(self, secret: bytes) -> Mac:
        return self._keyring.factory(derive(secret, b"quorumcast greeting"))

    def _refusal(self, hello: Hello) -> str | None:
        keyring, title = self._keyring, self._keyring.directory.title
        if hello.protocol != PROTOCOL:
            return (
                f"it speaks protocol {PROTOCOL} and you speak {hello.protocol}: "
                "install the same version of quorumcast on both sides"
            )
        if hello.instance != keyring.instance:
            return (
                f"it belongs to {keyring.instance!r}, which is not the system that you "
                f"called: use the {title} of {keyring.instance!r}, or start yours in its place"
            )
        if self._left:
            return f"it left with epoch {self._left}: go on to that epoch as well"
        if hello.epoch < keyring.epoch:
            return (
                f"it runs epoch {keyring.epoch} and yours is epoch {hello.epoch}: fetch "
                f"the current {title}"
            )
        if hello.epoch > keyring.epoch:
            return (
                f"it still runs epoch {keyring.epoch} and yours is epoch {hello.epoch}: "
                f"give {self.name} the current {title}"
            )
        if hello.to != self.name:
            return (
                f"this is {self.name} and not the node that you called: check the addresses in "
                f"your {title}"
            )
        if len(hello.sender) > limits.MAX_NAME or not keyring.knows(hello.sender):
            return (
                f"epoch {keyring.epoch} of {keyring.instance!r} does not list you: ask its "
                "operator to add your identity"
            )
        if hello.sender == self.name:
            return f"you call yourself {self.name}, and that is who I am: use your own identity"
        if len(hello.nonce) != NONCE_SIZE:
            return f"a greeting carries a nonce of {NONCE_SIZE} bytes"
        return None
