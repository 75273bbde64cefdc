"""The policy of a channel: what it promises, and the protocols that keep the promise.

A policy is protection × broadcast × history. `check` refuses all combinations that are not in this
table, because they would promise less than their name suggests.

    name            protection           broadcast      history   accepted at
    direct-crash    crash                direct         –         1 vote
    direct          trusted publishers   direct         –         f+1 votes
    ab, ab+history  byzantine            authenticated  α or –    ⌈(n+f+1)/2⌉ votes
    brb             byzantine            Bracha         –         ⌈(n+f+1)/2⌉ readies
    chain, …        byzantine            chain          α or –    the last f+1 of the chain
    total           byzantine            consensus      –         f+1 votes for a position
    total-crash     crash                consensus      –         1 vote for a position
    relay           trusted publishers   relay          –         f+1 votes
    relay-total     trusted publishers   relayed order  –         f+1 votes for a position

The last two carry on a channel of another cell (`broadcast.relayed`). The *origin* takes the place
of the publishers: it is trusted to promise what its own policy does. A cell alone cannot have such
a channel, so they are not among `POLICY_NAMES`.

History (Freeman §5) gives the fast broadcasts totality: every α publications their digests go
through Bracha. Bracha has totality already, and direct channels assume correct publishers, so
neither takes a history. A protocol of another package (`PROTOCOLS`) replaces one of the built-in
broadcasts and keeps the promise of its row: thresholds, recovery, receipts and the audit rest on
that. An adaptive channel moves α between `alpha` and `alpha_max`: up while
histories repair nothing, down when they do (Freeman §8.1). Channels that name no α are adaptive.
"""

from __future__ import annotations

import msgspec

from quorumcast.core.envelope import MAX_VALID_MS
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import (
    EVERYTHING,
    MAX_CHECKPOINT,
    MAX_PIPELINE,
    MAX_WAIT_MS,
    MAY_BE_ZERO,
    MIN_RETAINED_MS,
    MIN_WAIT_MS,
    WINDOWS_RETAINED,
    Limits,
)
from quorumcast.core.plugins import Plugin, Registry
from quorumcast.core.quorum import Broadcast, Protection
from quorumcast.core.statements import Basis

_HISTORY = "+history"
#: α of a channel that names none: it adapts between these two. More than the usual window is of no
#: use: a publisher would stop before its history is due.
ALPHA, ALPHA_MAX = 100, 1024
#: Suffixes for `journal`: "durable" where publications themselves are kept on disk, "journal" where
#: brokers only keep what they have voted for.
_DURABLE, _JOURNAL = "+durable", "+journal"

_NAMED: dict[str, tuple[Protection, Broadcast]] = {
    "ab": (Protection.BYZANTINE, Broadcast.AUTHENTICATED),
    "ab+history": (Protection.BYZANTINE, Broadcast.AUTHENTICATED),
    "brb": (Protection.BYZANTINE, Broadcast.BRACHA),
    "chain": (Protection.BYZANTINE, Broadcast.CHAIN),
    "chain+history": (Protection.BYZANTINE, Broadcast.CHAIN),
    "direct": (Protection.TRUSTED, Broadcast.DIRECT),
    "direct-crash": (Protection.CRASH, Broadcast.DIRECT),
    "total": (Protection.BYZANTINE, Broadcast.CONSENSUS),
    "total-crash": (Protection.CRASH, Broadcast.CONSENSUS),
}
_RELAYED: dict[str, tuple[Protection, Broadcast]] = {
    "relay": (Protection.TRUSTED, Broadcast.RELAY),
    "relay-total": (Protection.TRUSTED, Broadcast.RELAYED_ORDER),
}

_KEEPS_ALL = Limits(retained_publications=EVERYTHING, retained_bytes=EVERYTHING)

#: Every built-in policy that a manifest, a command or a test may ask for by name.
POLICY_NAMES: tuple[str, ...] = tuple(_NAMED)
#: The policies of channels that carry on those of another cell.
RELAYED_NAMES: tuple[str, ...] = tuple(_RELAYED)
#: The version of `broadcast.protocol.BroadcastProtocol` and of what it refers to.
CONTRACT = 1


class ProtocolTerms(Plugin, frozen=True, kw_only=True):
    """What a manifest must know of a protocol of another package."""

    #: The built-in policy whose promise it keeps.
    like: str


#: Policies by name; other packages bring a `broadcast.protocol.BroadcastProtocol`.
PROTOCOLS = Registry(
    "quorumcast.protocols", "policy", ProtocolTerms, CONTRACT, dict.fromkeys(_NAMED, "")
)


def like_of(name: str) -> str:
    """The built-in policy whose promise a policy keeps; raises `UsageError` if there is none."""
    if name in _NAMED:
        return name
    if name in _RELAYED:
        raise UsageError(
            f"policy {name!r} carries on a channel of another cell, so one cell alone cannot have "
            "it; 'quorumcast tree' makes such channels"
        )
    like = PROTOCOLS.load(name).like
    if like not in _NAMED:
        raise UsageError(
            f"protocol {name!r} keeps the promise of {like!r}, which is no built-in policy; its "
            f"author must name one of {', '.join(_NAMED)}"
        )
    return like


def parse_alpha(text: str) -> tuple[int | None, int]:
    """α and its upper end: 100 stays as it is, 10-512 adapts, and nothing is the usual one."""
    least, dash, most = text.partition("-")
    if text and not (least.isdecimal() and (most.isdecimal() or not dash)):
        raise UsageError(
            f"alpha must be a number, not {text!r}; write 100, or 10-512 for one that adapts"
        )
    return (int(least) if least else None), int(most or 0)


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy of one channel."""

    protection: Protection
    broadcast: Broadcast
    #: Publications between two histories; 0 for no histories.
    alpha: int = 0
    #: The upper end of an adaptive α; 0 for a fixed α.
    alpha_max: int = 0
    #: Whether brokers persist their votes before they send them. With total order they persist the
    #: publications as well: what was acknowledged survives a crash of all brokers.
    journal: bool = False
    limits: Limits = Limits()
    #: The protocol of another package that carries the channel instead of the built-in broadcast.
    protocol: str = ""

    @classmethod
    def named(
        cls,
        name: str,
        alpha: int | None = None,
        alpha_max: int = 0,
        journal: bool = False,
        limits: Limits | None = None,
    ) -> Policy:
        """The policy of that name; α is used by policies with history only.

        Without `alpha` it adapts. A durable channel keeps everything until somebody says otherwise.
        """
        like = name if name in _RELAYED else like_of(name)
        protection, broadcast = _RELAYED[like] if like in _RELAYED else _NAMED[like]
        history = like.endswith(_HISTORY)
        if limits is None:
            limits = _KEEPS_ALL if journal and broadcast is Broadcast.CONSENSUS else Limits()
        if alpha is None:
            most = max(1, min(limits.window, limits.retained_publications // 2))
            alpha, alpha_max = min(ALPHA, most), min(alpha_max or ALPHA_MAX, most)
        if history and alpha == 0:
            raise UsageError(
                f"policy {name!r} needs an alpha of 1 or more; without history it is called "
                f"{like.removesuffix(_HISTORY)!r}"
            )
        policy = cls(
            protection=protection,
            broadcast=broadcast,
            alpha=alpha if history else 0,
            alpha_max=alpha_max if history else 0,
            journal=journal,
            limits=limits,
            protocol="" if name == like else name,
        )
        policy.check()
        return policy

    @classmethod
    def parse(cls, text: str, alpha: int | None = None, alpha_max: int = 0) -> Policy:
        """The policy with this name, which may end in `+durable` or `+journal`."""
        name, journal = text, False
        for suffix, other in ((_DURABLE, _JOURNAL), (_JOURNAL, _DURABLE)):
            if not text.endswith(suffix):
                continue
            name, journal = text.removesuffix(suffix), True
            if name.endswith((_DURABLE, _JOURNAL)):
                raise UsageError(f"policy {text!r} says twice what is kept on disk; say it once")
            if name not in PROTOCOLS and name not in _RELAYED:
                break
            policy = cls.named(name, alpha, alpha_max, journal=True)
            if policy.durable != (suffix == _DURABLE):
                raise UsageError(
                    f"{name!r} keeps its publications on disk; write '{name}{other}'"
                    if policy.durable
                    else f"{name!r} keeps no publications on disk; use 'total{suffix}', or write "
                    f"'{name}{other}' for brokers that keep their word across restarts"
                )
        if name not in PROTOCOLS and name not in _RELAYED:
            raise UsageError(
                f"{PROTOCOLS.unknown(name)} ('{_DURABLE}' behind 'total' or 'total-crash' keeps "
                f"publications on disk, '{_JOURNAL}' behind another has brokers keep their word "
                "across restarts)"
            )
        return cls.named(name, alpha, alpha_max, journal=journal)

    @property
    def may_split(self) -> bool:
        """Whether a lying publisher can make correct brokers vote differently."""
        return self.protection is Protection.BYZANTINE and self.broadcast in (
            Broadcast.AUTHENTICATED,
            Broadcast.CHAIN,
        )

    @property
    def title(self) -> str:
        """The name with its suffix, as `parse` reads it."""
        if not self.journal:
            return self.name
        return f"{self.name}{_DURABLE if self.durable else _JOURNAL}"

    @property
    def described(self) -> str:
        """The title and α, for people."""
        alpha = f", α={self.alpha}" if self.has_history else ""
        return f"{self.title}{alpha}" + (f"…{self.alpha_max}" if self.adaptive else "")

    @property
    def durable(self) -> bool:
        """Whether brokers keep the publications on disk."""
        return self.journal and self.log is not None

    @property
    def name(self) -> str:
        """The name without suffix: one of `POLICY_NAMES`, or a protocol of another package."""
        return self.protocol or self.like

    @property
    def like(self) -> str:
        """The built-in policy whose promise this one keeps; its own name if it is built in."""
        if self.broadcast is Broadcast.DIRECT:
            return "direct-crash" if self.crash_only else "direct"
        if self.log is not None:
            return "total-crash" if self.crash_only else "total"
        history = _HISTORY if self.has_history else ""
        return f"{self.broadcast.value}{history}"

    @property
    def total(self) -> bool:
        """Whether all subscribers get all publications in one order: the channel is one stream."""
        return self.broadcast in (Broadcast.CONSENSUS, Broadcast.RELAYED_ORDER)

    @property
    def log(self) -> Protection | None:
        """The log of this cell that orders the channel, named by its protection.

        None without an order, and where another cell has the log.
        """
        return self.protection if self.broadcast is Broadcast.CONSENSUS else None

    @property
    def relayed(self) -> bool:
        """Whether the channel carries on one of another cell."""
        return self.broadcast in (Broadcast.RELAY, Broadcast.RELAYED_ORDER)

    @property
    def chained(self) -> bool:
        """Whether publications travel along a chain of brokers."""
        return self.broadcast is Broadcast.CHAIN

    @property
    def whole_runs(self) -> bool:
        """Whether brokers deliver each run as a whole, as its publisher cut it."""
        return self.broadcast is Broadcast.BRACHA

    @property
    def has_history(self) -> bool:
        """Whether histories vouch for what the fast path carried."""
        return self.alpha > 0

    @property
    def crash_only(self) -> bool:
        """Whether faulty nodes only crash."""
        return self.protection is Protection.CRASH

    @property
    def trusts_publishers(self) -> bool:
        """Whether only brokers may be faulty."""
        return self.protection is not Protection.BYZANTINE

    @property
    def live(self) -> bool:
        """Whether publications of a correct publisher arrive despite f faulty brokers (LC1).

        A chain without history loses what one of its brokers withholds.
        """
        return self.has_history or not self.chained

    @property
    def settles(self) -> bool:
        """Whether brokers agree on what a publisher that may lie has published."""
        return self.basis is Basis.SETTLED and not self.trusts_publishers

    @property
    def has_totality(self) -> bool:
        """Whether all correct subscribers accept what one of them accepts (LC2)."""
        return self.settles or self.total

    @property
    def needs_store(self) -> bool:
        """Whether brokers need a store to keep the promise."""
        return self.journal

    @property
    def adaptive(self) -> bool:
        """Whether α is adaptive."""
        return self.alpha_max > self.alpha

    @property
    def alpha_ceiling(self) -> int:
        """The largest α that a publisher may use."""
        return max(self.alpha, self.alpha_max)

    @property
    def least_retained(self) -> int:
        """The smallest number of publications that brokers can retain and still work."""
        return max(least for least, _ in self._retained_for())

    def _retained_for(self) -> tuple[tuple[int, str], ...]:
        """How many publications brokers must retain, and for what."""
        return (
            # Brokers retransmit, compare and fetch what is under way, so they must still hold it.
            (self.limits.window, "'window' of publications under way"),
            (2 * self.alpha_ceiling, "history of 2α publications"),
            # A statement covers its segment from the first number on.
            (self.limits.segment, "'segment' that brokers sign"),
        )

    @property
    def basis(self) -> Basis:
        """What a broker's signature on a publication means: whether correct brokers can differ.

        They cannot where Bracha or a history delivered it, or where publishers are trusted. With a
        fast broadcast alone, a lying publisher can send different contents to correct brokers.
        """
        settled = (
            self.broadcast in (Broadcast.BRACHA, Broadcast.CONSENSUS)
            or self.has_history
            or self.protection is Protection.TRUSTED
        )
        return Basis.SETTLED if settled else Basis.FORWARDED

    def check(self) -> None:
        """Raise `UsageError` for a combination that is not in the table, or for unusable limits."""
        self._check_combination()
        self._check_alpha()
        self._check_limits()

    def _check_combination(self) -> None:
        if self.relayed and self.protection is not Protection.TRUSTED:
            raise UsageError(
                f"policy {self.broadcast.value!r} relies on another cell, whatever that promises; "
                f"use the protection {Protection.TRUSTED.value!r}"
            )
        if self.protocol and (self.total or self.chained or self.relayed):
            raise UsageError(
                f"protocol {self.protocol!r} cannot replace {self.broadcast.value!r}: total order "
                "has one log for all channels, and votes of a chain name its order; let it keep "
                "the promise of 'direct', 'ab' or 'brb'"
            )
        direct = self.broadcast is Broadcast.DIRECT
        if direct and self.protection is Protection.BYZANTINE:
            raise UsageError(
                "a direct broadcast cannot withstand lying publishers; use 'ab', 'brb' or 'chain', "
                f"or lower the protection to {Protection.TRUSTED.value!r}"
            )
        ordered = self.log is not None
        if ordered and self.protection is Protection.TRUSTED:
            raise UsageError(
                "total order protects against lying publishers or against crashes alone; use the "
                f"protection {Protection.BYZANTINE.value!r} or {Protection.CRASH.value!r}"
            )
        fast = not (direct or ordered or self.relayed)
        if fast and self.protection is not Protection.BYZANTINE:
            raise UsageError(
                f"broadcast {self.broadcast.value!r} is for {Protection.BYZANTINE.value!r} "
                f"protection; with {self.protection.value!r} use the cheaper 'direct'"
            )
        if self.has_history and self.broadcast not in (Broadcast.AUTHENTICATED, Broadcast.CHAIN):
            raise UsageError(
                f"broadcast {self.broadcast.value!r} takes no history; set alpha to 0, or use "
                "'ab' or 'chain'"
            )

    def _check_alpha(self) -> None:
        if self.alpha < 0 or self.alpha_max < 0:
            raise UsageError("alpha and alpha_max count publications: 0 for none, or more")
        if self.alpha_max and not self.has_history:
            raise UsageError("alpha_max needs a history to adapt; set alpha to 1 or more")
        if 0 < self.alpha_max < self.alpha:
            raise UsageError(
                f"alpha_max={self.alpha_max} is below alpha={self.alpha}; raise it, or set it to 0 "
                "for an alpha that stays as it is"
            )
        # With less credit than α a publisher would stop before the history that settles its
        # publications is due.
        if self.alpha_ceiling > self.limits.window:
            raise UsageError(
                f"alpha reaches {self.alpha_ceiling}, but brokers take only {self.limits.window} "
                "unsettled publications; lower alpha or raise the limit 'window'"
            )

    def _check_limits(self) -> None:
        """Refuse limits under which publications or receipts would never arrive."""
        limits = self.limits
        for name in Limits.__struct_fields__:
            least = 0 if name in MAY_BE_ZERO else 1
            if getattr(limits, name) < least:
                raise UsageError(f"limit {name!r} must be {least} or more")
        if limits.validity_ms > MAX_VALID_MS:
            raise UsageError(
                f"limit 'validity_ms' is at most {MAX_VALID_MS:,}, about 49 days; 0 is for ever"
            )
        if limits.retained_ms < MIN_RETAINED_MS:
            raise UsageError(
                f"limit 'retained_ms' is {limits.retained_ms}, too short for what is under way: "
                f"raise it to {MIN_RETAINED_MS} or more"
            )
        if limits.checkpoint > MAX_CHECKPOINT or limits.pipeline > MAX_PIPELINE:
            raise UsageError(
                f"limit 'checkpoint' is at most {MAX_CHECKPOINT} and 'pipeline' at most "
                f"{MAX_PIPELINE}: brokers answer for every batch in between when a leader changes"
            )
        if limits.wait_ms:
            self._check_wait()
        needs = (
            # A run can be as long as the window, and a vote counts only if all of it is in range.
            ("vote_window", limits.window, "'window' of publications under way"),
            *(("retained_publications", least, what) for least, what in self._retained_for()),
        )
        for name, least, what in needs:
            if getattr(limits, name) < least:
                raise UsageError(
                    f"limit {name!r} is {getattr(limits, name)}, too few for a {what}: "
                    f"raise it to {least} or more"
                )

    def _check_wait(self) -> None:
        """Refuse a wait for slow subscribers that the channel could not keep to."""
        limits = self.limits
        if not MIN_WAIT_MS <= limits.wait_ms <= MAX_WAIT_MS:
            raise UsageError(
                f"limit 'wait_ms' is {limits.wait_ms:,}: publishers wait {MIN_WAIT_MS} to "
                f"{MAX_WAIT_MS:,} milliseconds for a subscriber; 0 is not at all"
            )
        if self.relayed:
            raise UsageError(
                "publishers of another cell do not wait for subscribers of this one: set limit "
                "'wait_ms' to 0"
            )
        if self.total:
            raise UsageError(
                "publishers of a total order do not wait for subscribers: set limit 'wait_ms' to "
                "0, and make the channel durable, which retains everything"
            )
        least = WINDOWS_RETAINED * limits.window
        if limits.retained_publications < least:
            raise UsageError(
                f"limit 'retained_publications' is {limits.retained_publications}, too few for "
                f"publishers that wait for subscribers: raise it to {least} or more"
            )
