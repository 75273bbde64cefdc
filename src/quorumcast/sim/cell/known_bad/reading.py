"""Known-bad variants of readers of the past: they end before what was acknowledged.

In each attack broker 1 denies what it has, broker 4 does not have it yet, and one of the brokers
that have it is slow to answer the reader.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from quorumcast.broadcast.sender import FanOutSender
from quorumcast.cell.messages import Positions
from quorumcast.cell.subscribing.interest import Interest
from quorumcast.cell.subscribing.reports import Reports
from quorumcast.core.machine import Effect, Send
from quorumcast.faults.cell.base import Tampering
from quorumcast.sim.cell.known_bad.plans import (
    B1,
    B2,
    B3,
    B4,
    PUB1,
    SUB2,
    fifo_plan,
    mount,
    order_plan,
)
from quorumcast.sim.cell.scenario import ORDERS
from quorumcast.sim.kernel.known_bad import Patch, Variant
from quorumcast.sim.kernel.network import LinkWeather, Weather
from quorumcast.sim.kernel.plan import Act


def deny_the_newest(fault: Tampering, send: Send, now: int) -> list[Effect]:
    """Report to hold one publication of each stream."""
    message = send.message
    if not isinstance(message, Positions):
        return [send]
    denied = tuple(replace(p, base=1, next=min(p.next, 2)) for p in message.positions)
    return [replace(send, message=replace(message, positions=denied))]


#: The second publication is ordered by brokers 1 and 2 alone until the end.
ORDERED_BY_TWO = (
    Act(200, "submit", PUB1, ORDERS, 1),
    Act(400, "submit", PUB1, ORDERS, 1),
    Act(425, "mute", B1, peers=(B3, B4)),
    Act(425, "mute", B2, peers=(B3, B4)),
    Act(425, "mute", B3, peers=(B4,)),
    Act(425, "mute", B4, peers=(B3,)),
    Act(455, "mute", B2, peers=(SUB2,)),
    Act(460, "read", SUB2, ORDERS),
    Act(550, "heal"),
)
#: The second publication does not reach broker 4, and broker 3 is slow to answer the reader.
HELD_BY_THREE = (
    Act(60, "submit", PUB1, ORDERS, 1),
    Act(110, "mute", PUB1, peers=(B4,)),
    Act(120, "submit", PUB1, ORDERS, 1),
    Act(150, "read", SUB2, ORDERS),
    Act(300, "heal"),
)


def _believed(self: Any) -> int:
    """As many brokers as are believed; only of n-f does every reader hear."""
    quorums, policy = self._view.quorums, self._policy
    if not policy.total:
        return int(quorums.responders)
    return int(quorums.of_log(policy.protection).believe)


def _begin_with_few(self: Any) -> Any:
    """Begin as soon as f+1 brokers have answered."""
    if len(self.reports) < self.reports.enough:
        return False, []
    return True, self._begin()


_LATE = Weather(latency_ms=1, jitter_ms=0, links=(LinkWeather(B3, SUB2, 100),))

READING_VARIANTS: tuple[Variant, ...] = (
    Variant(
        "acknowledged-by-few", "total order is acknowledged at f+1 brokers",
        [Patch(FanOutSender, "_brokers_needed", _believed)],
        order_plan("total", mount(B1, deny_the_newest), acts=ORDERED_BY_TWO), ("Present end",),
    ),
    Variant(
        "end-of-few", "a reader of the past ends where f+1 brokers say",
        [Patch(Interest, "_maybe_begin", _begin_with_few)],
        fifo_plan("ab", mount(B1, deny_the_newest), acts=HELD_BY_THREE, publications=0,
                  weather=_LATE),
        ("Present end",),
    ),
    Variant(
        "end-denied", "a reader of the past waits for no broker that may know of more",
        [Patch(Reports, "_may_be_longer", lambda self, stream: False)],
        fifo_plan("ab", mount(B1, deny_the_newest), acts=HELD_BY_THREE, publications=0,
                  weather=_LATE),
        ("Present end",),
    ),
)  # fmt: skip
