"""The catalogue of faults: one list for the simulator, `quorumcast faults` and the tests.

Crashes, twins, partitions and cut links are not here: they are done *to* a node from outside, not
by tampering with its effects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from quorumcast.core.errors import UsageError, did_you_mean, nearest
from quorumcast.core.ids import holder
from quorumcast.core.statements import Basis
from quorumcast.faults.cell import (
    clients,
    commission,
    matching,
    offering,
    omission,
    ordering,
    statements,
)
from quorumcast.faults.cell.entry import CatalogueEntry, FaultContext, Footprint, Role
from quorumcast.faults.contract import Fault
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.policy import POLICY_NAMES, Policy


def _policies(fits: Callable[[Policy], bool]) -> tuple[str, ...]:
    return tuple(name for name in POLICY_NAMES if fits(Policy.named(name)))


ALL = POLICY_NAMES
#: Policies that expect brokers to lie.
DISTRUSTING = _policies(lambda policy: not policy.crash_only)
#: With at most f brokers that stop or are slow, these deliver what a correct publisher sends …
CRASH_LIVE = _policies(lambda policy: policy.live)
#: … and these do so with brokers that lie, too.
LIVE = _policies(lambda policy: policy.live and not policy.crash_only)
#: Policies whose brokers settle what they forward, so that one that lies can be outvoted.
SETTLING = _policies(lambda policy: policy.basis is Basis.SETTLED and not policy.crash_only)
#: Policies without total order that do not trust publishers.
FIFO = _policies(lambda policy: not (policy.total or policy.trusts_publishers))
#: Policies with one order for everything.
TOTAL = _policies(lambda policy: policy.total)
#: Policies that let subscribers choose rows.
PREDICATED = _policies(lambda policy: not policy.chained)
HISTORY = _policies(lambda policy: policy.has_history)


_entry = partial(CatalogueEntry, valid_under=LIVE)
#: A fault that means something only under total order.
_ordering = partial(CatalogueEntry, provable_under=("total",), valid_under=TOTAL, only_under=TOTAL)

#: A fault that means something only where subscribers have predicates, which chains refuse.
_matching = partial(_entry, only_under=PREDICATED, of_rows=True)

_BROKER = Role.BROKER
_PUBLISHER = Role.PUBLISHER
_SUBSCRIBER = Role.SUBSCRIBER

_ENTRIES = (
    _entry("silent", _BROKER, omission.Silent, Footprint.SUSPICION,
           "receives everything and sends nothing", valid_under=CRASH_LIVE, benign=True),
    _entry("slow", _BROKER, omission.Slow, Footprint.NOTHING,
           "sends everything, 20 to 200 ms late", valid_under=ALL, benign=True),
    _entry("drop", _BROKER, omission.Dropping, Footprint.SUSPICION,
           "no votes for subscribers, no Bracha messages to f brokers, nothing down the chain",
           valid_under=CRASH_LIVE, benign=True),
    _entry("drop-kind", _BROKER, omission.DropKind, Footprint.NOTHING,
           "never sends one kind of message", valid_under=CRASH_LIVE, benign=True),
    _entry("censor-node", _BROKER, omission.CensorNode, Footprint.NOTHING,
           "treats one client as if it were not there", valid_under=CRASH_LIVE, benign=True),
    _entry("censor-channel", _BROKER, omission.CensorChannel, Footprint.NOTHING,
           "carries everything but one channel", valid_under=CRASH_LIVE, benign=True),
    _entry("withhold-bodies", _BROKER, omission.WithholdBodies, Footprint.NOTHING,
           "votes, and never sends the contents", valid_under=CRASH_LIVE, benign=True),
    _entry("reorder", _BROKER, omission.Reorder, Footprint.NOTHING,
           "sends everything in any order", valid_under=ALL, benign=True),
    _entry("alter", _BROKER, commission.Alter, Footprint.EVIDENCE,
           "changes number, publisher, channel, contents, vouchers or incarnation, and signs it",
           provable_under=SETTLING),
    _entry("alter-body", _BROKER, commission.AlterBody, Footprint.SUSPICION,
           "changes the contents and leaves the digest"),
    _entry("equivocate", _BROKER, commission.Equivocate, Footprint.EVIDENCE,
           "tells half of its peers one thing and the others another",
           provable_under=DISTRUSTING),
    _entry("counterfeit", _BROKER, commission.Counterfeit, Footprint.NOTHING,
           "vouches for publications that nobody published"),
    _entry("replay", _BROKER, commission.Replaying, Footprint.NOTHING,
           "sends old messages again, to anybody", valid_under=ALL),
    _entry("flood", _BROKER, commission.Flood, Footprint.NOTHING,
           "buries its peers under nonsense", valid_under=DISTRUSTING),
    _entry("corrupt-history", _BROKER, commission.CorruptHistory, Footprint.NOTHING,
           "lies about histories only", valid_under=DISTRUSTING),
    _entry("false-checkpoints", _BROKER, statements.FalseCheckpoints, Footprint.EVIDENCE,
           "votes for the truth and signs statements about something else", provable_under=SETTLING,
           valid_under=DISTRUSTING),
    _entry("forge-statements", _BROKER, statements.ForgeStatements, Footprint.NOTHING,
           "shows statements that other brokers never signed", valid_under=DISTRUSTING),
    _entry("two-faced", _BROKER, statements.TwoFaced, Footprint.NOTHING,
           "sends each peer the version that a conspiring publisher chose for it",
           valid_under=DISTRUSTING),
    _entry("lie-acks", _BROKER, commission.LieAcks, Footprint.NOTHING,
           "acknowledges everything and forwards nothing"),
    _entry("false-positions", _BROKER, commission.FalsePositions, Footprint.NOTHING,
           "absurd numbers in positions and acknowledgements"),
    _matching("omit-rows", _BROKER, matching.OmitRows, Footprint.SUSPICION,
              "leaves out rows that match"),
    _matching("omit-matches", _BROKER, matching.OmitMatches, Footprint.SUSPICION,
              "says that nothing matches"),
    _matching("pad-rows", _BROKER, matching.PadRows, Footprint.SUSPICION,
              "adds rows that do not match, and contents where nothing matches"),
    _matching("false-coverage", _BROKER, matching.FalseCoverage, Footprint.NOTHING,
              "says that nothing matches in numbers that it does not hold"),
    _matching("other-predicate", _BROKER, matching.OtherPredicate, Footprint.SUSPICION,
              "votes for the results of another predicate, or of the opposite one"),
    _matching("stale-predicate", _BROKER, matching.StalePredicate, Footprint.NOTHING,
              "keeps voting for the first predicate that a subscriber had"),
    _ordering("silent-leader", _BROKER, ordering.SilentLeader, Footprint.NOTHING,
              "orders with the others, and never proposes when it leads", benign=True),
    _ordering("slow-leader", _BROKER, ordering.SlowLeader, Footprint.NOTHING,
              "proposes 50 to 550 ms late", benign=True),
    _ordering("withhold-offers", _BROKER, ordering.WithholdOffers, Footprint.NOTHING,
              "gives no offer, batch, log or state to brokers that lack it", benign=True),
    _ordering("equivocating-leader", _BROKER, ordering.EquivocatingLeader, Footprint.NOTHING,
              "proposes different batches to different brokers, and votes for both"),
    _ordering("unfair-leader", _BROKER, ordering.UnfairLeader, Footprint.NOTHING,
              "leaves one publisher's runs out of its batches"),
    _ordering("unfetchable-leader", _BROKER, ordering.UnfetchableLeader, Footprint.NOTHING,
              "proposes runs that nobody can produce"),
    _ordering("double-vote", _BROKER, ordering.DoubleVote, Footprint.NOTHING,
              "writes and accepts different values towards different brokers"),
    _ordering("false-stop-data", _BROKER, ordering.FalseStopData, Footprint.NOTHING,
              "lies at a leader change about what it decided, wrote and accepted"),
    _ordering("false-sync", _BROKER, ordering.FalseSync, Footprint.NOTHING,
              "leads on statements that are too few, doubled, altered or false"),
    _ordering("impatient", _BROKER, ordering.Impatient, Footprint.NOTHING,
              "asks for another leader all the time"),
    _ordering("false-state", _BROKER, ordering.FalseState, Footprint.NOTHING,
              "gives brokers that are behind another log, another state or other chunks"),
    _ordering("false-standing", _BROKER, ordering.FalseStanding, Footprint.NOTHING,
              "says that it is far ahead, far behind, at another checkpoint, or just restarted"),
    _ordering("lie-in-ordering", _BROKER, ordering.LieInOrdering, Footprint.EVIDENCE,
              "withholds, misorders, and misinforms brokers and subscribers"),
    _ordering("lie-to-subscribers", _BROKER, ordering.LieToSubscribers, Footprint.EVIDENCE,
              "orders with the others, and sends subscribers something else"),
    _entry("skip-broker", _PUBLISHER, clients.SkipBroker, Footprint.NOTHING,
           "sends nothing to f brokers", valid_under=ALL),
    _entry("equivocating-publisher", _PUBLISHER, clients.EquivocatingPublisher, Footprint.EVIDENCE,
           "different contents for different brokers, with a signed history for each",
           provable_under=HISTORY, valid_under=ALL),
    _entry("skip-history", _PUBLISHER, clients.SkipHistory, Footprint.NOTHING,
           "publishes and never sends a history", valid_under=ALL),
    _entry("bad-bodies", _PUBLISHER, clients.BadBodies, Footprint.NOTHING,
           "contents that do not match their digests", valid_under=ALL),
    _entry("gaps", _PUBLISHER, clients.Gaps, Footprint.NOTHING,
           "leaves numbers out", valid_under=ALL),
    _entry("publisher-flood", _PUBLISHER, clients.PublisherFlood, Footprint.NOTHING,
           "opens stream after stream", valid_under=ALL),
    _ordering("offer-to-one", _PUBLISHER, offering.OfferToOne, Footprint.NOTHING,
              "offers everything to one broker only"),
    _ordering("two-offers", _PUBLISHER, offering.TwoOffers, Footprint.NOTHING,
              "two signed versions of one run, for different brokers"),
    _ordering("bad-signature", _PUBLISHER, offering.BadSignature, Footprint.NOTHING,
              "offers whose signature does not hold, to some brokers"),
    _ordering("bad-label", _PUBLISHER, offering.BadLabel, Footprint.NOTHING,
              "contents labelled as another's or as another number"),
    _ordering("overlapping-runs", _PUBLISHER, offering.OverlappingRuns, Footprint.NOTHING,
              "the same publications in runs cut differently"),
    _ordering("offer-flood", _PUBLISHER, offering.OfferFlood, Footprint.NOTHING,
              "offers stream after stream, and numbers far ahead"),
    _entry("pull-flood", _SUBSCRIBER, clients.PullFlood, Footprint.NOTHING,
           "asks for everything, again and again", valid_under=ALL),
    _entry("false-missed", _SUBSCRIBER, clients.FalseMissed, Footprint.NOTHING,
           "claims to have missed what it received", valid_under=ALL),
    _entry("never-reads", _SUBSCRIBER, clients.NeverReads, Footprint.NOTHING,
           "claims to read nothing, so that publishers wait for it", valid_under=ALL),
    _entry("unauthorised", _SUBSCRIBER, clients.Unauthorised, Footprint.NOTHING,
           "subscribes and publishes where it may not", valid_under=ALL),
    _entry("impersonate", _SUBSCRIBER, clients.Impersonate, Footprint.NOTHING,
           "speaks for other nodes through its own session", valid_under=ALL),
    _matching("predicate-flood", _SUBSCRIBER, matching.PredicateFlood, Footprint.NOTHING,
              "asks for other rows with every message", valid_under=ALL),
    _matching("costly-predicate", _SUBSCRIBER, matching.CostlyPredicate, Footprint.NOTHING,
              "asks for rows with a predicate of 100 patterns", valid_under=ALL),
)  # fmt: skip

#: Every fault by its name, in the order in which `quorumcast faults list` shows them.
CATALOGUE: dict[str, CatalogueEntry] = {entry.name: entry for entry in _ENTRIES}


def names(role: Role) -> tuple[str, ...]:
    """The faults that a role can commit."""
    return tuple(entry.name for entry in _ENTRIES if entry.role is role)


def check_fault(name: str, *roles: Role) -> CatalogueEntry:
    """The entry of a fault that nodes in one of these roles can commit; UsageError if none can."""
    entry = CATALOGUE.get(name)
    if entry is not None and entry.role in roles:
        return entry
    known = [one for role in roles for one in names(role)]
    wrong = f"{name!r} is a {entry.role.value}'s fault" if entry else f"there is no fault {name!r}"
    near = "" if entry else nearest(name, known)
    able = " or ".join(role.value for role in roles)
    meant = f"did you mean {near!r}?" if near else f"a {able} can commit {', '.join(known)}"
    raise UsageError(f"{wrong}; {meant}")


def check_victims(victims: Iterable[str], manifest: Manifest) -> None:
    """Raise UsageError if a fault cannot aim at one of these in a cell."""
    nodes = [*manifest.broker_ids, *(client.id for client in manifest.clients)]
    channels = [channel.name for channel in manifest.channels]
    parts = (*omission.KINDS, *commission.FIELDS)
    parts += (*ordering.FALSE_STATEMENTS, *ordering.FALSE_STANDINGS)
    known = [*nodes, *channels, *parts]
    for victim in victims:
        if holder(victim) in known:
            continue
        near = nearest(victim, known)
        meant = f"did you mean {near!r}?" if near else f"this cell has {', '.join(nodes)}"
        raise UsageError(f"there is no node, channel or kind of message {victim!r}; {meant}")


def make_fault(name: str, context: FaultContext) -> Fault:
    """A fault by its name, ready to be given to a driver."""
    entry = CATALOGUE.get(name)
    if entry is None:
        raise UsageError(f"there is no fault {name!r}; {did_you_mean(name, CATALOGUE)}")
    return entry.make(context)
