"""The only module that knows arithmetic on n and f.

Every threshold has a name and, beside it, the intersection argument that it rests on. `n` is the
number of brokers in the cell, `f` how many of them may be faulty.
"""

from __future__ import annotations

import enum

import msgspec

from quorumcast.core.errors import UsageError


class Protection(enum.Enum):
    """What a channel is protected against."""

    #: Up to f brokers stop; nobody lies.
    CRASH = "crash"
    #: Up to f brokers lie; publishers are trusted.
    TRUSTED = "trusted-publishers"
    #: Up to f brokers lie and so may any publisher.
    BYZANTINE = "byzantine"


class Broadcast(enum.Enum):
    """How a publication travels through the cell."""

    DIRECT = "direct"
    AUTHENTICATED = "ab"
    BRACHA = "brb"
    CHAIN = "chain"
    #: Through consensus: everybody sees everything in one order.
    CONSENSUS = "total"
    #: From another cell, whose subscribers the brokers are: streams, or a total order.
    RELAY = "relay"
    RELAYED_ORDER = "relay-total"


class Quorums(msgspec.Struct, frozen=True):
    """The thresholds of a cell of `n` brokers that tolerates `f` faulty ones."""

    n: int
    f: int

    @property
    def one_correct(self) -> int:
        """f+1 brokers: at least one of them is correct."""
        return self.f + 1

    @property
    def responders(self) -> int:
        """n-f brokers: all that one may wait for, since f may stay silent for ever."""
        return self.n - self.f

    @property
    def others(self) -> int:
        """Every broker but the one that counts."""
        return self.n - 1

    @property
    def other_responders(self) -> int:
        """n-f-1 brokers: all that a broker may wait for besides itself."""
        return self.responders - 1

    @property
    def correct_responders(self) -> int:
        """n-2f brokers: as many of any n-f are correct.

        They still report what n-f brokers acknowledged, although f others are silent or forgot it.
        """
        return self.responders - self.f

    @property
    def intersecting(self) -> int:
        """⌈(n+f+1)/2⌉ brokers: any two such sets share f+1 brokers, hence a correct one.

        Two values can therefore not both gather it, as a correct broker vouches for one value
        only. At n = 3f+1 it is 2f+1; with spare brokers 2f+1 would be too few: with n = 5 and
        f = 1 two sets of three may share nobody but the liar.
        """
        return (self.n + self.f) // 2 + 1

    @property
    def echo(self) -> int:
        """Echoes after which a Bracha broker is ready: no two values can both have as many."""
        return self.intersecting

    @property
    def echo_over_chain(self) -> int:
        """n-f echoes for the histories of a chain: they include a correct broker of any chain.

        What a chain let through all its correct brokers vouch for, and there are f+1 of them at
        least: too many for n-f echoes to miss. `echo` is as much at n = 3f+1 but less beyond: with
        n = 6 and f = 1 four brokers outside the chain could echo what its brokers never saw.
        """
        return self.responders

    @property
    def ready_join(self) -> int:
        """Readies that make a Bracha broker ready too: one of them is a correct broker's."""
        return self.one_correct

    @property
    def ready_accept(self) -> int:
        """⌈(n+f+1)/2⌉ readies: f+1 are correct brokers', so every correct broker will be ready.

        At n = 3f+1 that is the document's 2f+1. With spare brokers it is more, and has to be: one
        of the f+1 may leave with the next epoch, and the f that stay would convince nobody. Of
        2f+2 at least f+1 correct ones stay. It is also enough for an epoch that raises f by one.
        """
        return self.intersecting

    @property
    def chain_length(self) -> int:
        """2f+1 brokers make a chain."""
        return 2 * self.f + 1

    @property
    def chain_pool(self) -> int:
        """Chains are drawn from 3f+1 brokers only.

        Two chains of 2f+1 out of 3f+1 share f+1 brokers, hence a correct one, which forwards one
        contents per number: that is what keeps agreement when the publisher changes its chain.
        """
        return 3 * self.f + 1

    @property
    def alike_over_chains(self) -> int:
        """Equal votes of the pool, by whatever chains, at which a subscriber accepts.

        2f+1 of 3f+1 share f+1 brokers with every chain and with one another, hence a correct one.
        """
        return self.chain_length

    @property
    def chain_reach(self) -> int:
        """A chain broker's MACs reach f+1 successors; each verifies as many predecessors."""
        return self.one_correct

    def of_log(self, log: Protection) -> OrderQuorums:
        """The thresholds of the log with that protection."""
        return OrderQuorums(self.n, self.f, log is Protection.BYZANTINE)


class OrderQuorums(msgspec.Struct, frozen=True):
    """The thresholds of total order: one engine, two quorum systems."""

    n: int
    f: int
    #: Whether brokers may lie; otherwise they only stop.
    byzantine: bool

    @property
    def decide(self) -> int:
        """Equal WRITEs, and equal ACCEPTs, that any two quorums share a correct broker for.

        FIT-Broker decides at f+1 STRONGs. Inside a regency that is safe; across a leader change
        n-f brokers can be asked of whom none holds the decided value.
        """
        return (self.n + self.f) // 2 + 1 if self.byzantine else self.n // 2 + 1

    @property
    def responders(self) -> int:
        """n-f brokers: all that one may wait for. So many move to a new regency."""
        return self.n - self.f

    @property
    def believe(self) -> int:
        """Equal reports of which one is a correct broker's; as many STOPs make others join."""
        return self.f + 1 if self.byzantine else 1

    @property
    def recall(self) -> int:
        """Others that a broker without its memory listens to before it takes part.

        A quorum that counted on its votes had decide-1 others. It is itself one of the f, so all
        but f-1 of them tell the truth, and one of those is among any n-decide+f others. Where
        brokers only crash nobody lies, and one of them is among any n-decide+1. That is more than
        n-f-1: with three brokers of which one may crash, the only other one that it heard might be
        the one that was not asked.
        """
        spared = self.f if self.byzantine else min(self.f, 1)
        return max(self.n - self.decide + spared, self.responders - 1)

    @property
    def anchored(self) -> int:
        """Brokers that have decided an instance so that others can always learn it from them.

        f of them may be faulty; of the others as many are left as one needs to believe it.
        """
        return self.f + self.believe


def faulty_across(present: int, following: int) -> int:
    """Brokers that may be faulty when the epoch changes, where f was one number and is another.

    An epoch that lowers f asks for as many as the one before: those who said so might still be more
    than the new f that lie or forget. f changes by one at a time.
    """
    return max(following, min(present, following + 1))


def _per_fault(protection: Protection, broadcast: Broadcast | None) -> int:
    """k, where a channel tolerates f faulty brokers of n ≥ kf+1."""
    if protection is Protection.CRASH:
        return 2 if broadcast is Broadcast.CONSENSUS else 1
    return 2 if protection is Protection.TRUSTED else 3


def minimum_brokers(protection: Protection, f: int, broadcast: Broadcast | None = None) -> int:
    """How many brokers a channel needs so that its promise holds with f faulty ones."""
    return _per_fault(protection, broadcast) * f + 1


def largest_f(protection: Protection, n: int, broadcast: Broadcast | None = None) -> int:
    """How many faulty brokers a cell of n can tolerate under a protection."""
    return (n - 1) // _per_fault(protection, broadcast)


def accept_votes(quorums: Quorums, protection: Protection, broadcast: Broadcast) -> int:
    """Equal votes at which a subscriber accepts a publication.

    Chain is counted apart (the last `chain_reach` brokers of the chain, all of them). Of a relayed
    channel f+1 are enough, as with trusted publishers: one of them is a correct broker's, and what
    correct brokers accept from the parent cell they accept alike.
    """
    match protection, broadcast:
        case Protection.CRASH, _:
            return 1
        case Protection.TRUSTED, _:
            return quorums.one_correct
        case _, Broadcast.CONSENSUS:
            return quorums.one_correct
        case _, Broadcast.BRACHA:
            return quorums.ready_accept
        case _, Broadcast.CHAIN:
            return quorums.chain_reach
        case _:
            return quorums.intersecting


def receipt_votes(quorums: Quorums, protection: Protection) -> int:
    """Signatures that make a receipt: one of them must be a correct broker's."""
    return 1 if protection is Protection.CRASH else quorums.one_correct


def check_cell(
    n: int, f: int, protection: Protection, channel: str, broadcast: Broadcast | None = None
) -> None:
    """Refuse a channel whose promise the cell cannot keep."""
    needed = minimum_brokers(protection, f, broadcast)
    if n < needed:
        raise UsageError(
            f"channel {channel!r} with {protection.value} protection needs {needed} brokers to "
            f"tolerate f={f}, but the cell has {n}; add brokers or lower f to "
            f"{max(largest_f(protection, n, broadcast), 0)}"
        )
