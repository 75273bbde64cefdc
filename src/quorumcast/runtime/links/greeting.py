"""How two nodes meet: Hello, Welcome, or a Farewell that says in one sentence what is wrong.

The caller says who it is, whom it wants, for which instance and epoch. The called node answers
with a nonce and a MAC that proves that it is the one that was called; the caller proves itself with
its first sealed packet. Until that packet has been verified the called node believes nothing: an
impostor that only knows names can neither take the place of a live connection nor make a machine
hear of it. Farewells are not authenticated and nobody acts on one beyond reading its own manifest
file again and telling its user. One may carry a newer manifest: it is worth what its operator's
signature and the words of f+1 brokers in it are worth, whoever sends it.

This is the `Handshake` of systems whose nodes are listed with their keys in a manifest.
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

#: A greeting frame longer than this is refused unread, whoever sends it.
MAX_GREETING_BYTES = 2048
#: … unless we called: the answer may be a farewell with a manifest in it.
MAX_ANSWER_BYTES = MAX_GREETING_BYTES + MAX_PROOF_BYTES
#: Of a stranger's sentence, as much is shown.
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
    """Greets and judges greetings for one node in one epoch."""

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
        #: What shows to those in an older epoch that this one was decided.
        self._shown = proof
        #: The epoch in which this node is no longer a member; 0 if it is one.
        self._left = 0

    def leave(self, epoch: int) -> None:
        """Greet nobody any more: that epoch does not name us."""
        self._left = epoch

    @property
    def name(self) -> NodeId:
        """Who we are."""
        return self._keyring.identity.name

    @property
    def epoch(self) -> int:
        """The epoch of our manifest."""
        return self._keyring.epoch

    def decode(self, frame: bytes) -> Greeting | None:
        """The greeting in a frame, or None if it is not one."""
        return decode_greeting(frame)

    def hello(self, to: NodeId) -> Hello:
        """Our first words to a peer."""
        keyring = self._keyring
        return Hello(PROTOCOL, keyring.instance, keyring.epoch, self.name, to, self._nonce())

    def answer(self, hello: Hello) -> tuple[Welcome, Session] | Farewell:
        """A welcome and the session that follows from it, or why not."""
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
        keyring = self._keyring
        if hello.protocol != PROTOCOL:
            return (
                f"{self.name} speaks protocol {PROTOCOL} and you speak {hello.protocol}: "
                "install the same version of quorumcast on both sides"
            )
        if hello.instance != keyring.instance:
            return (
                f"{self.name} belongs to the cell {keyring.instance!r}, not to the one in your "
                "manifest: use the manifest of this cell"
            )
        if self._left:
            return f"{self.name} has left the cell with epoch {self._left}: take that one as well"
        if hello.epoch < keyring.epoch:
            return (
                f"{self.name} runs epoch {keyring.epoch} of the manifest and yours is epoch "
                f"{hello.epoch}: fetch the current manifest"
            )
        if hello.epoch > keyring.epoch:
            return (
                f"{self.name} still runs epoch {keyring.epoch} of the manifest and yours is epoch "
                f"{hello.epoch}: give {self.name} the current manifest"
            )
        if hello.to != self.name:
            return (
                f"this is {self.name} and not the node that you called: "
                "check the broker addresses in the manifest"
            )
        if len(hello.sender) > limits.MAX_NAME or not keyring.knows(hello.sender):
            return (
                f"the manifest of epoch {keyring.epoch} does not name you: "
                "ask the operator to add your identity"
            )
        if hello.sender == self.name:
            return f"you call yourself {self.name}, and that is who I am: use your own identity"
        if len(hello.nonce) != NONCE_SIZE:
            return f"a greeting carries a nonce of {NONCE_SIZE} bytes"
        return None
