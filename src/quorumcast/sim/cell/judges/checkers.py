"""Safety and accountability: properties that hold at every moment, judged outside the machines.

Each checker sees every effect of a correct node (`on_effect`) before `CellFacts` records it, and is
called once more at the end of the run (`at_end`). No checker looks into a machine. A checker that
cannot fail is a defect, so each has a test that feeds it a violation. Liveness properties are in
`promises`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from quorumcast.broadcast.application import (
    Acknowledged,
    Contradicted,
    Deliver,
    DeliverGap,
    Passed,
    Proven,
)
from quorumcast.broadcast.messages import ChainRun, Contents, Echo, Matches, Publish, Pull, Ready
from quorumcast.cell.filters import results_of
from quorumcast.cell.messages import Checkpoint, Positions, Regain, Regained, Vote
from quorumcast.core.cuts import head_of, looks_cut
from quorumcast.core.ids import (
    CELL,
    DIGEST_SIZE,
    Digest,
    Lane,
    NodeId,
    Stream,
    split_digests,
    total_order,
)
from quorumcast.core.labels import label, unlabel
from quorumcast.core.machine import Accuse, Send
from quorumcast.core.message import Message
from quorumcast.core.statements import (
    Basis,
    Evidence,
    EvidenceKind,
    HistoryStatement,
    Receipt,
    SegmentStatement,
    Signed,
    Statement,
    parse_statement,
)
from quorumcast.crypto.digest import root
from quorumcast.crypto.identity import signature_holds
from quorumcast.faults.cell.base import channel_of
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.ordering.messages import (
    Accept,
    Chunk,
    Fetched,
    LogPart,
    Offer,
    Past,
    Propose,
    StateHead,
    Write,
)
from quorumcast.sim.cell.judges.facts import CellFacts, may_publish, may_subscribe
from quorumcast.sim.cell.judges.filtering import Completeness, SoundResults
from quorumcast.sim.cell.judges.journaling import Journaled
from quorumcast.sim.cell.judges.order import TotalOrder
from quorumcast.sim.cell.judges.reading import ReadToTheEnd
from quorumcast.sim.cell.judges.refusing import Justified, NoRefusal
from quorumcast.sim.cell.judges.twin import value_of_body
from quorumcast.sim.kernel.judging import Checker, EffectChecker


class Relevance(EffectChecker):
    """A subscriber accepts only publications of its channels, and both sides have the right."""

    name = "Relevance"
    watches = frozenset((Deliver,))

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Deliver) -> None:
        stream = effect.stream
        if facts.reader(node, stream.channel) is None:
            facts.violate(self.name, f"{node} accepted {stream} {effect.number} unsubscribed")
        if stream.lane is not Lane.DATA:
            facts.violate(self.name, f"{node} handed a history to its application: {stream}")
        if not may_subscribe(facts.manifest_of(node), node, stream.channel):
            facts.violate(self.name, f"{node} reads {stream.channel} without the right")
        publisher = stream.publisher
        if not may_publish(facts.manifest_of(publisher), publisher, stream.channel):
            facts.violate(self.name, f"{node} accepted {stream}, whose publisher has no right")


#: Messages that disclose contents, digests or positions of a channel.
DISCLOSING: frozenset[type] = frozenset((Vote, Matches, Contents, Checkpoint, Positions))
#: Messages that are for brokers only.
INTERNAL: frozenset[type] = frozenset(
    (Regained, Offer, Propose, Fetched, LogPart, StateHead, Chunk, Past, Echo, Ready)
)


class NoDisclosure(EffectChecker):
    """A correct broker sends a channel's data only to its subscribers, and its log to brokers."""

    name = "Rights"
    watches = DISCLOSING | INTERNAL

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Send) -> None:
        message, manifest = effect.message, facts.manifest_of(node)
        clients = [peer for peer in effect.to if manifest.client(peer) is not None]
        channel = channel_of(message) if clients else None
        # The broker may be in any of the epochs, and a channel may be deleted in a later one.
        for peer in clients if manifest.client(node) is None else ():
            if type(message) in INTERNAL:
                facts.violate(self.name, f"{node} shows {peer} a {type(message).__name__}")
            elif channel is not None and not any(
                may_subscribe(epoch, peer, channel) for epoch in facts.manifests_of(node)
            ):
                facts.violate(self.name, f"{node} shows {peer} what is on {channel}")


class Authenticity(EffectChecker):
    """An accepted publication of a correct publisher was published exactly so."""

    name = "Authenticity"
    watches = frozenset((Deliver,))

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Deliver) -> None:
        what = f"{effect.stream} {effect.number}"
        contents = effect.body
        if effect.position:
            contents = label(effect.stream, effect.number) + contents
        if not effect.cut and facts.manifest_of(node).hash(contents) != effect.digest:
            facts.violate(self.name, f"{node} accepted {what} with contents of another digest")
        if not facts.adversary.is_correct(effect.stream.publisher):
            return
        published = facts.published.get(effect.stream, [])
        if not 1 <= effect.number <= len(published):
            facts.violate(self.name, f"{node} accepted {what}, which was never published")
        elif not effect.cut and published[effect.number - 1][0] != effect.body:
            facts.violate(self.name, f"{node} accepted {what} with altered contents")
        elif effect.cut and self._named(facts, effect) != effect.digest:
            facts.violate(self.name, f"{node} accepted rows of {what} that are of something else")

    def _named(self, facts: CellFacts, effect: Deliver) -> Digest:
        (contents,) = facts.contents(effect.stream, effect.number)
        return facts.manifest_of(effect.stream.publisher).hash(contents)


class Uniqueness(EffectChecker):
    """No reader accepts a publication twice."""

    name = "Uniqueness"
    watches = frozenset((Deliver,))

    def __init__(self) -> None:
        self._seen: dict[tuple[int, Stream, int], None] = {}

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Deliver) -> None:
        key = (id(facts.reader(node, effect.stream.channel)), effect.stream, effect.number)
        if key in self._seen:
            facts.violate(self.name, f"{node} accepted {effect.stream} {effect.number} twice")
        self._seen[key] = None


class Agreement(EffectChecker):
    """No two correct subscribers accept different contents for the same number (SC1)."""

    name = "Agreement"
    watches = frozenset((Deliver,))

    def __init__(self) -> None:
        self._accepted: dict[tuple[Stream, int], tuple[Digest, NodeId]] = {}

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Deliver) -> None:
        key = (effect.stream, effect.number)
        digest, other = self._accepted.setdefault(key, (effect.digest, node))
        if digest != effect.digest:
            facts.violate(
                self.name, f"{other} and {node} accepted different {effect.stream} {effect.number}"
            )


class Fifo(EffectChecker):
    """Numbers of one publisher are accepted in order, and every gap is announced.

    No gap is announced for publications of a correct publisher that brokers must still retain.
    """

    name = "FIFO"
    watches = frozenset((Deliver, DeliverGap, Passed))

    def __init__(self, *, gaps_allowed: bool = False) -> None:
        self._gaps_allowed = gaps_allowed

    def on_effect(
        self, facts: CellFacts, node: NodeId, effect: Deliver | DeliverGap | Passed
    ) -> None:
        reader = facts.reader(node, effect.stream.channel)
        if reader is None:
            return
        known = reader.upto(effect.stream)
        if isinstance(effect, Passed):
            if effect.upto < known:
                facts.violate(self.name, f"{node} passed {effect.stream} {effect.upto} at {known}")
            return
        number = effect.number if isinstance(effect, Deliver) else effect.first
        # A gap in the total order may hide numbers of any publisher, and so do predicates.
        # What of the numbers in between matches is for `Completeness` to say.
        skipped = total_order(effect.stream.channel) in reader.gaps or (
            isinstance(effect, Deliver) and reader.is_filtered and (effect.position or reader.asked)
        )
        if known and (number <= known if skipped else number != known + 1):
            facts.violate(self.name, f"{node} came to {effect.stream} {number} after {known}")
        lies = not facts.adversary.is_correct(effect.stream.publisher)
        if not isinstance(effect, DeliverGap) or self._gaps_allowed or lies:
            return
        if effect.upto > facts.let_go(effect.stream, node):
            facts.violate(
                self.name,
                f"{node} gave up {effect.stream} {effect.first} to {effect.upto}, "
                "though the cell should hold them",
            )


class SoundBlame(EffectChecker):
    """Evidence never accuses a correct node, and convinces a third party."""

    name = "Sound blame"
    watches = frozenset((Accuse,))

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Accuse) -> None:
        accused = effect.evidence.accused
        if facts.adversary.is_correct(accused):
            facts.violate(self.name, f"{node} accuses {accused}, which is correct")
        flaw = flaw_of(effect.evidence, facts.signed_in(effect.evidence.against))
        if flaw:
            facts.violate(self.name, f"{node}'s evidence against {accused} is void: {flaw}")


class SoundStatements(EffectChecker):
    """Correct brokers sign equal statements about settled segments, and none contradicts itself.

    Accountability rests on it: two conflicting statements would convict a correct broker.
    """

    name = "Sound statements"
    watches = frozenset((Checkpoint,))

    def __init__(self) -> None:
        self._roots: dict[tuple[object, ...], tuple[bytes, NodeId]] = {}

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Send) -> None:
        message = effect.message
        said = (
            parse_statement(message.statement.payload) if isinstance(message, Checkpoint) else None
        )
        if not isinstance(said, SegmentStatement) or said.broker != node:
            return
        by = None if said.basis is Basis.SETTLED else (node, said.life)
        entry = facts.manifest_of(node).channel(said.stream.channel)
        rows = "" if entry is None else entry.carried
        place = (said.stream, said.log_id, said.first, said.count, by, rows)
        known, other = self._roots.setdefault(place, (said.root, node))
        if known != said.root:
            about = f"{said.stream} from {said.first} on"
            facts.violate(self.name, f"{other} and {node} sign different things of {about}")


#: Messages that bind their sender to one value for each place.
STANDING: frozenset[type] = frozenset(
    (Publish, Offer, Vote, Matches, Echo, Ready, Propose, Write, Accept)
)


class OneStory(EffectChecker):
    """A correct node never equivocates: it sends one value for each place, to every peer.

    Quorum intersection rests on it. It holds across crashes: a node with amnesia counts as faulty,
    unless it lost a disk that the others could replace.
    """

    name = "One story"
    watches = STANDING

    def __init__(self) -> None:
        #: The value sent for each place, by sender, its disk and the kind of message.
        self._told: dict[tuple[object, ...], object] = {}

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Send) -> None:
        message = effect.message
        teller = (node, facts.disk_of(node), type(message))
        if isinstance(message, Offer) and not message.stream.spoken_by(node):
            return  # a broker may forward both offers that an equivocating publisher signed
        for place, value in self._places(facts, node, message):
            if self._told.setdefault((*teller, *place), value) != value:
                what = type(message).__name__
                facts.violate(self.name, f"{node} says {what} twice about {place}, and differently")

    def _places(
        self, facts: CellFacts, node: NodeId, message: Message
    ) -> Iterator[tuple[tuple[object, ...], object]]:
        match message:
            case Echo(stream=stream, first=first, run=run) | Ready(stream, first, run):
                yield (stream, first), run
            case Write() | Accept():
                yield (message.log, message.regency, message.instance), message.value
            case Propose(log=log, regency=regency, instance=instance, batch=batch):
                yield (log, regency, instance), batch
            case Matches(stream=stream, where=where):
                entry = facts.manifest_of(node).channel(stream.channel)
                if entry is not None and not entry.policy.has_history:
                    votes, _ = results_of(message, ()) or (b"", ())
                    for number, value in enumerate(split_digests(votes), message.first):
                        yield (stream, where, number), value
            case Publish() | Offer() | Vote():
                stream = message.stream
                entry = facts.manifest_of(node).channel(stream.channel)
                if isinstance(message, Vote) and (entry is None or entry.policy.has_history):
                    return  # a history may correct a broker
                for number, digest in enumerate(split_digests(message.digests), message.first):
                    yield (stream, number), digest
            case _:
                return


#: Messages that carry a run.
CARRYING: frozenset[type] = frozenset((Publish, ChainRun, Vote, Contents, Regained, Offer))


class Vouching(EffectChecker):
    """Correct nodes send contents that match their digests and that the publisher published."""

    name = "Vouching"
    watches = CARRYING

    def __init__(self) -> None:
        #: What cells vouch for, by the rows that they carry on.
        self._digests: dict[tuple[Stream, int, str], bytes] = {}

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Send) -> None:
        message = effect.message
        if not isinstance(message, Publish | ChainRun | Vote | Contents | Regained | Offer):
            return
        digests, stream = split_digests(message.digests), message.stream
        hash_, entry = facts.manifest_of(node).hash, facts.manifest_of(node).channel(stream.channel)
        published = facts.published.get(stream)
        if entry is None:
            return
        if effect.bodies and [value_of_body(entry, hash_, b) for b in effect.bodies] != digests:
            facts.violate(self.name, f"{node} sends other contents of {stream} than it names")
        if published is None or entry.policy.total:
            return
        for number, digest in enumerate(digests, message.first):
            if not facts.adversary.is_correct(stream.publisher):
                return
            if number > len(published) or digest != self._value(facts, entry, stream, number):
                facts.violate(self.name, f"{node} vouches for {stream} {number}, never published")

    def _value(self, facts: CellFacts, entry: ChannelEntry, stream: Stream, number: int) -> bytes:
        place = (stream, number, entry.carried)
        known = self._digests.get(place)
        if known is None:
            contents, _ = facts.published[stream][number - 1]
            known = self._digests[place] = facts.twin.carried(entry, contents).value
        return known


class SoundReceipts(EffectChecker):
    """A receipt convinces a third party, and proves only what its publisher published."""

    name = "Sound receipts"
    watches = frozenset((Proven,))

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Proven) -> None:
        receipt = effect.receipt
        stream, number, contents = receipt.stream, receipt.number, receipt.contents
        what = f"{node}'s receipt of {stream} {number}"
        flaw = flaw_of_receipt(receipt, facts.signed_in(receipt.statements))
        if flaw:
            facts.violate(self.name, f"{what} is void: {flaw}")
        head = head_of(contents) if looks_cut(contents) else contents
        found = unlabel(head) if stream.publisher == CELL else None
        if found is not None:
            number, publisher = found[0].number, NodeId(found[0].publisher)
            stream = Stream(stream.channel, publisher, found[0].incarnation)
        entry = facts.manifest_of(node).channel(stream.channel)
        if entry is None or not facts.adversary.is_correct(stream.publisher):
            return
        there = facts.contents(stream, number)
        if contents not in [facts.twin.carried(entry, one).body for one in there]:
            facts.violate(self.name, f"{what} proves what was never published")


class Acknowledgement(EffectChecker):
    """A publication is acknowledged only once enough correct brokers hold it.

    A publisher waits for n-f brokers (on a chain, for the chain), of which f may be faulty. A
    publisher that resumes its stream is never told that it published something else before.
    """

    name = "Acknowledged"
    watches = frozenset((Acknowledged, Contradicted))

    def on_effect(
        self, facts: CellFacts, node: NodeId, effect: Acknowledged | Contradicted
    ) -> None:
        if isinstance(effect, Contradicted):
            facts.violate(self.name, f"{node} is contradicted about {effect.stream}")
        elif effect.stream.lane is Lane.DATA:
            self._check_holders(facts, node, effect)

    def _check_holders(self, facts: CellFacts, node: NodeId, effect: Acknowledged) -> None:
        count = len(facts.published.get(effect.stream, ()))
        if effect.upto > count:
            facts.violate(self.name, f"{node} was told that {effect.upto} of its {count} are safe")
        holders = [
            broker
            for broker in dict.fromkeys(b for m in facts.manifests_of(node) for b in m.broker_ids)
            if facts.held.get((effect.stream, broker), 0) >= effect.upto
        ]
        if len(holders) < self._needed(facts, node, effect.stream):
            held = ", ".join(holders) or "nobody"
            facts.violate(self.name, f"{node} was told that {effect.upto} are safe with {held}")

    def _needed(self, facts: CellFacts, node: NodeId, stream: Stream) -> int:
        # The publisher may be in any of the epochs.
        return min(self._needed_in(manifest, stream) for manifest in facts.manifests_of(node))

    def _needed_in(self, manifest: Manifest, stream: Stream) -> int:
        quorums, channel = manifest.quorums, manifest.channel(stream.channel)
        if channel is None:
            return 0
        waited_for = quorums.responders
        if channel.policy.chained:
            waited_for = min(waited_for, quorums.chain_length)
        return waited_for - quorums.f


#: Largest number of equal requests to brokers that hold the contents; slow links cause a few.
MAX_ASKED = 12


class Questions(EffectChecker):
    """A request to a correct broker that holds the contents is answered.

    A node that lacks contents repeats its requests to one peer after the other. Once the network is
    calm, a few must suffice. Otherwise brokers reject the request, or the node rejects the answer.
    """

    name = "Questions"
    watches = frozenset((Pull, Regain))

    def __init__(self) -> None:
        #: Number of times each node sent each request to brokers that hold the contents.
        self._asked: Counter[tuple[NodeId, Pull | Regain]] = Counter()

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Send) -> None:
        message = effect.message
        if not facts.calm or not isinstance(message, Pull | Regain):
            return
        for holder in effect.to:
            if facts.adversary.is_correct(holder) and facts.holds(
                holder, message.stream, message.first
            ):
                break
        else:
            return
        # A request for digests goes to all brokers at once and counts once.
        self._asked[node, message] += 1
        if self._asked[node, message] > MAX_ASKED:
            what = f"{message.stream} {message.first}"
            facts.violate(self.name, f"{node} asks for {what} for ever, which {holder} holds")


def safety_checkers(*, gaps_allowed: bool) -> list[Checker[CellFacts]]:
    """All safety checkers."""
    return [
        Relevance(),
        NoDisclosure(),
        Authenticity(),
        Uniqueness(),
        Agreement(),
        TotalOrder(),
        Fifo(gaps_allowed=gaps_allowed),
        SoundBlame(),
        SoundStatements(),
        OneStory(),
        Vouching(),
        SoundReceipts(),
        Acknowledgement(),
        Completeness(),
        SoundResults(),
        Journaled(),
        Questions(),
        NoRefusal(),
        Justified(),
        ReadToTheEnd(),
    ]


# ------------------------------------------------------- evidence, verified independently


def flaw_of(evidence: Evidence, manifest: Manifest, *, any_epoch: bool = False) -> str | None:
    """The reason why evidence is void, or None; independent of the code that collects it."""
    against = _verified(evidence.against, manifest, any_epoch=any_epoch)
    witnesses = _verified(evidence.witnesses, manifest, any_epoch=any_epoch)
    if against is None or witnesses is None:
        return "a signature does not hold, or a statement is of another cell or epoch"
    if any(signer != evidence.accused for signer, _ in against):
        return "a statement against it is somebody else's"
    match evidence.kind:
        case EvidenceKind.CONFLICT:
            if len(against) != 2 or not _conflict(against[0][1], against[1][1]):
                return "its statements do not contradict each other"
        case EvidenceKind.OUTVOTED:
            return _flaw_of_outvoted(evidence, manifest, against, witnesses)
    return None


def flaw_of_receipt(receipt: Receipt, manifest: Manifest, *, any_epoch: bool = False) -> str | None:
    """The reason why a receipt is void, or None; independent of the code that collects it."""
    channel = manifest.channel(receipt.stream.channel)
    statements = _verified(receipt.statements, manifest, any_epoch=any_epoch)
    if channel is None or statements is None:
        return "a signature does not hold, or it is of another cell or epoch"
    place = receipt.number - receipt.first
    digest = receipt.digests[place * DIGEST_SIZE : (place + 1) * DIGEST_SIZE]
    if place < 0 or value_of_body(channel, manifest.hash, receipt.contents) != digest:
        return "the contents are not what was signed for"
    count = len(receipt.digests) // DIGEST_SIZE
    signers = {
        signer: None
        for signer, statement in statements
        if isinstance(statement, SegmentStatement)
        and manifest.broker(signer) is not None
        and (statement.stream, statement.first, statement.count)
        == (receipt.stream, receipt.first, count)
        and statement.root == root(receipt.first, receipt.digests)
    }
    needed = 1 if channel.policy.crash_only else manifest.f + 1
    return None if len(signers) >= needed else f"only {len(signers)} brokers signed for it"


def _verified(
    statements: Sequence[Signed], manifest: Manifest, *, any_epoch: bool
) -> list[tuple[NodeId, Statement]] | None:
    directory = manifest.keys
    result: list[tuple[NodeId, Statement]] = []
    for signed in statements:
        keys = directory.get(signed.signer)
        statement = parse_statement(signed.payload)
        if keys is None or statement is None or not signature_holds(signed, keys.verify_key):
            return None
        if statement.cell != manifest.cell:
            return None
        # A history holds in all later epochs, so a publisher may contradict itself across them.
        earlier = isinstance(statement, HistoryStatement) and statement.epoch <= manifest.epoch
        if statement.epoch != manifest.epoch and not (any_epoch or earlier):
            return None
        author = (
            statement.broker
            if isinstance(statement, SegmentStatement)
            else statement.stream.publisher
        )
        if author != signed.signer:
            return None
        result.append((signed.signer, statement))
    return result


def _conflict(one: Statement, other: Statement) -> bool:
    if isinstance(one, HistoryStatement) and isinstance(other, HistoryStatement):
        if one.stream != other.stream:
            return False
        return (one.index == other.index and one != other) or _overlap_differs(one, other)
    if isinstance(one, SegmentStatement) and isinstance(other, SegmentStatement):
        # A history may correct a broker that merely forwarded, so both need the same basis.
        return (
            (one.stream, one.first, one.count) == (other.stream, other.first, other.count)
            and one.basis is other.basis
            and bool(one.life)
            # A broker may have forgotten another life, and another log has other positions.
            and (one.life, one.log_id) == (other.life, other.log_id)
            and one.root != other.root
        )
    return False


def _overlap_differs(one: HistoryStatement, other: HistoryStatement) -> bool:
    digests = _by_number(one)
    return any(digests.get(n, digest) != digest for n, digest in _by_number(other).items())


def _by_number(statement: HistoryStatement) -> dict[int, bytes]:
    count = len(statement.digests) // DIGEST_SIZE
    return {
        statement.first + i: statement.digests[i * DIGEST_SIZE : (i + 1) * DIGEST_SIZE]
        for i in range(count)
    }


def _flaw_of_outvoted(
    evidence: Evidence,
    manifest: Manifest,
    against: list[tuple[NodeId, Statement]],
    witnesses: list[tuple[NodeId, Statement]],
) -> str | None:
    if len(against) != 1 or not isinstance(against[0][1], SegmentStatement):
        return "there is not exactly one statement of the accused"
    claim = against[0][1]
    channel = manifest.channel(claim.stream.channel)
    if channel is None or claim.basis is not Basis.SETTLED:
        return "correct brokers may differ about it"
    if channel.policy.crash_only:
        return "crash protection settles nothing"
    others: dict[NodeId, None] = {}
    for signer, statement in witnesses:
        if (
            isinstance(statement, SegmentStatement)
            and statement.basis is Basis.SETTLED
            and (statement.stream, statement.first, statement.count)
            == (claim.stream, claim.first, claim.count)
            and statement.root != claim.root
            and statement.root == _root_of(witnesses[0][1])
            and _remembers(statement, claim)
            and manifest.broker(signer) is not None
            and signer != evidence.accused
        ):
            others[signer] = None
    if len(others) < manifest.f + 1:
        return f"only {len(others)} brokers contradict it"
    return None


def _remembers(witness: SegmentStatement, claim: SegmentStatement) -> bool:
    """Whether both speak of one log, and the witness has not lost its memory since."""
    if claim.stream.publisher == CELL and claim.log_id == b"":
        return False
    same = claim.log_id == witness.log_id and witness.life != b""
    return same and (witness.broker, witness.life) in claim.peers


def _root_of(statement: Statement) -> bytes | None:
    return statement.root if isinstance(statement, SegmentStatement) else None
