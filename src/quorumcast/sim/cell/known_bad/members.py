"""Known-bad variants of epoch changes: of brokers, f, retention and channels."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from quorumcast.broadcast.ledger import Quota
from quorumcast.cell.serving.membership import Membership
from quorumcast.cell.serving.sequencers import Sequencers
from quorumcast.cell.serving.served_stream import ServedStream
from quorumcast.cell.serving.served_streams import ServedStreams
from quorumcast.core.ids import Channel
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Effect
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import Signed
from quorumcast.core.tally import Tally
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.view import View
from quorumcast.sim.cell.cells import broker_names
from quorumcast.sim.cell.known_bad.plans import PLOT, PUB1, SUB2, joins, seeded_plan
from quorumcast.sim.cell.plan import small_limits
from quorumcast.sim.cell.scenario import ORDERS, QUOTES
from quorumcast.sim.kernel.known_bad import Patch, Variant
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import Act, Corruption

B1, B2, _, B4, B5, B6 = broker_names(6)


def _believable(self: Membership, following: Manifest, words: Iterable[Signed]) -> bool:
    """Whether f+1 brokers confirm an epoch; not whether one that stays knows what came before."""
    return len(tuple(words)) >= self._view.quorums.one_correct


#: Two of five brokers hold one version and two another; the fifth sent both, and is removed. Four
#: votes decide before, three afterwards: with the vote of the fifth, each version would have them.
_two_versions = seeded_plan(
    "members",
    Policy.named("ab", limits=small_limits()),
    [
        *joins(ORDERS),
        *(Act(60 + 6 * number, "submit", PUB1, ORDERS, 1) for number in range(4)),
        Act(150, "remove", B1),
    ],
    [
        Corruption(PUB1, "equivocating-publisher", 0, 100, (B4, B5), PLOT),
        Corruption(B1, "two-faced", 0, 100, (B4, B5, SUB2), PLOT),
    ],
    brokers=5,
    newcomers=1,
    calm_at_ms=600,
    patience_ms=2500,
)

#: Times and amounts of the submissions in `_removed_too_soon`.
_BUSY = ((97, 1), (135, 16), (156, 8), (287, 1), (291, 8), (298, 8), (318, 8), (327, 3), (374, 8))

#: Two of five brokers are paused; the fifth is removed, and one other has seen it happen.
_removed_too_soon = seeded_plan(
    "removed early",
    Policy.named("total", journal=True, limits=small_limits()),
    [
        *joins(ORDERS),
        Act(44, "pause", B2),
        Act(51, "pause", B4),
        *(Act(at, "submit", PUB1, ORDERS, count) for at, count in _BUSY),
        Act(518, "remove", B5),
        Act(635, "resume", B4),
        Act(640, "resume", B2),
        Act(655, "add", B6),
    ],
    brokers=5,
    newcomers=1,
    weather=Weather(latency_ms=3, jitter_ms=5, loss=150, duplication=100),
    calm_at_ms=1432,
    patience_ms=15_000,
    sync_ms=0,
)

#: A cell of five raises f to two; then a second broker lies as the first one does.
_raised = seeded_plan(
    "raised",
    Policy.named("direct", limits=small_limits()),
    [
        *joins(ORDERS),
        Act(20, "faults", B4, amount=2),
        *(Act(60 + 20 * number, "submit", PUB1, ORDERS, 1) for number in range(30)),
    ],
    [Corruption(B2, "alter", 0, 100, ("contents",))],
    brokers=5,
    doomed=((B4, "alter"),),
    calm_at_ms=800,
)

#: Brokers are told to retain less than they hold.
_lowered = seeded_plan(
    "lowered",
    Policy.named("ab", limits=small_limits()),
    [
        *joins(ORDERS),
        *(Act(20 + 10 * number, "submit", PUB1, ORDERS, 8) for number in range(20)),
        Act(400, "retain", channel=ORDERS, amount=64),
        Act(600, "read", SUB2, ORDERS),
    ],
    calm_at_ms=700,
)

#: A broker is cut off while a channel is deleted and created again.
_replaced = seeded_plan(
    "replaced",
    Policy.named("total", journal=True, limits=small_limits()),
    [
        *joins(ORDERS, QUOTES),
        *(Act(20 + 20 * number, "submit", PUB1, QUOTES, 2) for number in range(8)),
        Act(300, "partition", peers=(B4,)),
        Act(320, "delete", channel=QUOTES),
        Act(321, "create", channel=QUOTES),
        Act(1800, "heal"),
    ],
    channels=(ORDERS, QUOTES),
    calm_at_ms=2000,
)


def _adopt_with_old_quorums(
    self: View, manifest: Manifest, keyring: Keyring, signed: bytes = b""
) -> None:
    quorums = self.quorums
    _adopt(self, manifest, keyring, signed)
    self.quorums = quorums


_adopt, _narrow = View.adopt, Quota.narrow


def _narrow_to_half(self: Quota, limits: Limits, count: int) -> bool:
    half = replace(limits, retained_publications=limits.retained_publications // 2)
    return _narrow(self, half, count)


def _recount_by_name(self: ServedStreams) -> list[tuple[ServedStream, list[Effect]]]:
    for data in [data for data in self._by_stream if self._view.channel(data.channel) is None]:
        self._remove(data)
    return [(served, served.carrier.recount()) for served in self.all()]


def _logs_by_name(self: Sequencers) -> dict[Channel, tuple[Protection, int]]:
    logs = {entry.name: entry.policy.log for entry in self._view.channels}
    return {name: (log, 1) for name, log in logs.items() if log is not None}


MEMBER_VARIANTS: tuple[Variant, ...] = (
    Variant(
        "lone-move", "f+1 statements suffice for an epoch, also of brokers that leave with it",
        [Patch(Membership, "_learnable", _believable)],
        _removed_too_soon, ("Validity",),
    ),
    Variant(
        "votes-of-the-removed", "votes of a broker that an epoch removes are still counted",
        [Patch(Tally, "retain", lambda self, members: None)],
        _two_versions, ("Agreement",),
    ),
    Variant(
        "faults-of-the-past", "nodes count votes by the f of the epoch in which they started",
        [Patch(View, "adopt", _adopt_with_old_quorums)],
        _raised, ("Authenticity", "Sound blame"),
    ),
    Variant(
        "limits-of-the-past", "brokers do not drop what a lower limit lets them no longer retain",
        [Patch(ServedStreams, "shrink", lambda self, count=0: [])],
        _lowered, ("Upkeep",),
    ),
    Variant(
        "limits-too-low", "brokers drop more than a lower limit says",
        [Patch(Quota, "narrow", _narrow_to_half)],
        _lowered, ("FIFO", "Retention"),
    ),
    Variant(
        "namesake-kept", "a broker that was away takes a new channel for a deleted one of its name",
        [
            Patch(ServedStreams, "recount", _recount_by_name),
            Patch(Sequencers, "_logs_now", _logs_by_name),
        ],
        _replaced, ("Upkeep",),
    ),
)  # fmt: skip
