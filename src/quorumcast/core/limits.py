"""Every bound on what a peer can make us keep or read, by name. Each has a test that fills it."""

from __future__ import annotations

import enum

import msgspec

#: A frame longer than this is refused before anything is allocated for it.
MAX_FRAME_BYTES = 32 * 1024 * 1024
#: The authenticated part of a frame (everything but the bodies).
MAX_HEADER_BYTES = 4 * 1024 * 1024
#: Messages in one frame.
MAX_MESSAGES = 4096
#: No stream gets this far; what follows from a number (the next one, a credit) is still decodable.
MAX_NUMBER = 2**61
#: As much as there is: a limit that is never reached.
EVERYTHING = MAX_NUMBER
#: Publications in one run: one message vouches for at most as many.
MAX_RUN = 1024
#: Contents of one publication.
MAX_BODY_BYTES = 16 * 1024 * 1024
#: Events of one publication: half a megabyte can hold four million rows of one bit.
MAX_ROWS = 1 << 20
#: Events of a publication on which predicates are evaluated; a larger one goes whole.
MAX_MATCHED_ROWS = 1 << 16
#: A node's or channel's name.
MAX_NAME = 128
#: There is no port beyond; systems count on from 0 there, and somebody may answer.
LAST_PORT = 65_535
#: Links that a node has dialed, at a time.
MAX_DIALED = 64
#: How often a client may be there at once beside itself, at seats of its own ("spark#3").
MAX_SEATS = 64
#: Streams named in one message.
MAX_STREAMS_NAMED = 4096
#: Streams of one publisher on one channel of which a broker remembers only where they ended.
MAX_ENDED = 256
#: Broker names in a chain, and MACs that travel with a run.
MAX_CHAIN = 64
MAX_VOUCHERS = 4096
#: What a message of a protocol of another package may carry beside bodies.
MAX_CUSTOM_BYTES = 64 * 1024
#: Runs in one batch of a total order, and batches or offers asked for at once.
MAX_BATCH = 1024
MAX_FETCH = 256
#: A manifest that brokers pass on to one another.
MAX_MANIFEST_BYTES = 1024 * 1024
#: Chunks of a transferred state.
MAX_CHUNKS = 4096
#: Instances in a broker's statement when the leader changes, and values that it wrote in each: the
#: statements of a large cell must fit into one frame.
MAX_CLAIMS = 512
MAX_WRITTEN = 4
#: What a channel may ask for, so that its brokers' statements stay within that.
MAX_CHECKPOINT = 128
MAX_PIPELINE = 64
#: Predicates that one node has on one channel, and the bytes of the text of one.
MAX_PREDICATES = 1024
MAX_PREDICATE_TEXT = 32 * 1024
#: Characters of all of them together: reading one takes a few microseconds.
MAX_FILTER_TEXT = 64 * 1024
#: The same of all channels and seats of one client, at one broker.
MAX_CLIENT_TEXT = 512 * 1024
#: Practically for ever: a hundred years.
FOREVER_MS = 100 * 365 * 24 * 3600 * 1000
#: A shorter time is too short for what is under way.
MIN_RETAINED_MS = 1000


#: The longest time for which publishers can be made to wait for a subscriber, and the shortest.
MAX_WAIT_MS = 60_000
MIN_WAIT_MS = 100
#: A broker withholds credit while a window is under way, so it must retain some windows.
WINDOWS_RETAINED = 4

#: Limits of which 0 has a meaning: without end, or not at all.
MAY_BE_ZERO = ("validity_ms", "wait_ms")


class Overflow(enum.Enum):
    """What becomes of publications for which an application's queue has no room."""

    #: Read nothing more from the brokers until there is room; what they stop retaining is a gap.
    WAIT = "wait"
    #: The oldest one that waits gives way.
    OLDEST = "oldest"
    #: What comes is not kept.
    NEWEST = "newest"


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds that a channel may tune; the defaults suit a small cell."""

    #: Publications a broker keeps per publisher, over all of its lives, for replays and pulls.
    retained_publications: int = 4096
    #: Bytes of contents a broker keeps per publisher, over all of its lives.
    retained_bytes: int = 64 * 1024 * 1024
    #: How long a broker keeps a publication at least, unless one of the two above ends it before.
    retained_ms: int = FOREVER_MS
    #: Durable channels: bytes of the newest contents that a broker also keeps in memory.
    cached_bytes: int = 8 * 1024 * 1024
    #: Publications a broker takes beyond those it has settled.
    window: int = 1024
    #: Lives of a publisher of which publications are retained; the oldest gives way.
    streams_per_publisher: int = 256
    #: Clients that may publish, and listen, at the same time; the seats of one count once.
    publishers: int = 1_000_000
    subscribers: int = 1_000_000
    #: Publications a publisher keeps until brokers acknowledged them.
    publisher_buffer: int = 8192
    #: Bytes a publisher keeps until brokers acknowledged them.
    publisher_bytes: int = 128 * 1024 * 1024
    #: Numbers ahead of its next one for which a subscriber counts votes.
    vote_window: int = 8192
    #: Numbers per segment: a broker signs one statement per segment.
    segment: int = 256
    #: Segments for which a subscriber keeps signed statements.
    kept_segments: int = 64
    #: Publications replayed for one request of a subscriber.
    replay: int = 1024
    #: Total order: batches under way at once, and decisions between two checkpoints. Channels with
    #: one log share the largest.
    pipeline: int = 8
    checkpoint: int = 64
    #: For how long publications are valid whose publisher does not say; 0 is for ever.
    validity_ms: int = 0
    #: Publications that wait for an application that does not say how many may.
    queue: int = 4096
    #: How long publishers wait for a slow subscriber before it gets a gap; 0: they do not wait.
    wait_ms: int = 0

    @property
    def replayed(self) -> int:
        """Publications replayed at once: votes beyond a subscriber's window would be dropped."""
        return min(self.replay, self.vote_window)
