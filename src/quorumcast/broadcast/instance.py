"""What a broker knows of one run on its way through Bracha's broadcast."""

from __future__ import annotations

from quorumcast.core.ids import Digest, Millis
from quorumcast.core.tally import Tally


class Instance:
    """One run on its way: who echoed what, who is ready for what, and the contents seen."""

    __slots__ = ("contents", "echoed", "echoes", "pulled", "readies", "ready", "since", "waited")

    def __init__(self, since: Millis) -> None:
        #: When it was first heard of.
        self.since = since
        self.echoes: Tally[bytes] = Tally()
        self.readies: Tally[bytes] = Tally()
        #: What we echoed; set once (algorithm 5, line 8).
        self.echoed: bytes | None = None
        #: What we are ready for; set once (algorithm 5, lines 16 and 24).
        self.ready: bytes | None = None
        #: Contents by run digest: the publisher's first, or what was pulled for `ready`.
        self.contents: dict[bytes, tuple[list[Digest], tuple[bytes, ...]]] = {}
        #: How often the contents were asked for.
        self.pulled = 0
        #: Whether a whole retry interval has passed since it began.
        self.waited = False
