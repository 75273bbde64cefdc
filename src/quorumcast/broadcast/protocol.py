"""A broadcast protocol of another package: what it consists of, and where it is looked up.

Its entry point is in the group `quorumcast.protocols`; its name is the name of the policy. The
signed manifest names it (`Policy.protocol`), so brokers and publishers use the same one. It keeps
the promise of a built-in policy (`like`), whose thresholds, recovery, receipts and checkers apply
to it: subscribers need not have it installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quorumcast.broadcast.contract import Carrier, CarrierContext
from quorumcast.broadcast.sender import FanOutSender, HistorySender
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Stream
from quorumcast.core.limits import Limits
from quorumcast.manifest.policy import PROTOCOLS, Policy, ProtocolTerms
from quorumcast.manifest.view import View

#: Makes the publisher's side of a stream.
MakeSender = Callable[[Stream, View, Policy, HistorySender | None], FanOutSender]


class BroadcastProtocol(ProtocolTerms, frozen=True, kw_only=True):
    """A broadcast protocol of another package."""

    #: Makes the broker's side of a stream.
    carrier: Callable[[Stream, CarrierContext], Carrier]
    #: Makes the publisher's side; by default every run goes to every broker.
    sender: MakeSender = FanOutSender
    #: The limits of the containers that `Carrier.sizes` names and no built-in protocol has.
    bounds: Callable[[Limits], Mapping[str, int]] = lambda limits: {}


def protocol_of(policy: Policy) -> BroadcastProtocol | None:
    """The protocol of another package that carries a channel; None if a built-in one does."""
    if not policy.protocol:
        return None
    found = PROTOCOLS.load(policy.protocol)
    if not isinstance(found, BroadcastProtocol):
        raise UsageError(
            f"protocol {policy.protocol!r} has no carrier: its author must make it a "
            "BroadcastProtocol"
        )
    if found.like != policy.like:
        raise UsageError(
            f"protocol {policy.protocol!r} keeps the promise of {found.like!r}, and the manifest "
            f"says {policy.like!r}; install the version for which the channel was made"
        )
    return found


def check_installed(policies: Mapping[str, Policy]) -> None:
    """Raise `UsageError` if the protocol of a channel (policies by channel) cannot be used here."""
    for channel, policy in policies.items():
        try:
            protocol_of(policy)
        except UsageError as error:
            raise UsageError(f"channel {channel!r} cannot be served here: {error}") from error
