"""What machines say, as lines of text for people: the printed half of a golden script.

    60 b1 b2 b3 > brokers: Accept r0 i1 A

Nodes that do the same in the same millisecond share a line, and `brokers` are all brokers but the
sender itself. What a digest stands for is printed in its place:

    x                 the contents "x", whichever digest, root or label they travel under
    H2=3:[x y]        the history with index 2, about numbers 3 and 4
    A, B, …           batches of a total order, in the order in which they were first proposed
    S1, S2, …         states of a total order, by their roots; equal names are equal states
    c1, c2, …         chains of a resumed stream: each stands for everything up to a number
    alice, alice@4    a stream by its publisher; other incarnations than the first are named
    order             the stream of positions that a total order gives out
    r1, e2.r0         regency 1; in a later epoch than the first, regency 0 of epoch 2
    i3                instance 3 of consensus

Timers are never printed. Background messages (`BACKGROUND`) and what a script hides are counted
behind the lines of their block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from tests.support.cells import digest

from quorumcast.broadcast.messages import (
    Ack,
    ChainRun,
    Contents,
    Echo,
    Open,
    Outlived,
    Publish,
    Pull,
    Ready,
)
from quorumcast.broadcast.signed_history import read_history
from quorumcast.cell.messages import (
    Accusation,
    Attest,
    Checkpoint,
    Missed,
    Position,
    Positions,
    Refuse,
    Regain,
    Regained,
    Subscribe,
    Taken,
    Vote,
)
from quorumcast.core.ids import (
    CELL,
    DIGEST_SIZE,
    EPOCHS,
    GENESIS,
    Lane,
    NodeId,
    Stream,
    resumable,
    split_digests,
)
from quorumcast.core.labels import unlabel
from quorumcast.core.machine import Record
from quorumcast.core.message import Message
from quorumcast.core.statements import (
    Claim,
    SegmentStatement,
    Signed,
    parse_epoch,
    parse_statement,
    parse_stop,
)
from quorumcast.crypto.digest import root
from quorumcast.ordering.consensus import Voted, value_of
from quorumcast.ordering.epochs import first_regency, within_epoch
from quorumcast.ordering.execution import Decided, Snapshot
from quorumcast.ordering.leader_change import Moved
from quorumcast.ordering.log import Held
from quorumcast.ordering.messages import (
    Accept,
    Batch,
    Chunk,
    ChunkQuery,
    Fetch,
    Fetched,
    Item,
    LogPart,
    LogQuery,
    Offer,
    Past,
    PastQuery,
    Propose,
    Standing,
    StateHead,
    Stop,
    StopData,
    Sync,
    Write,
)
from quorumcast.ordering.offers import Stored
from quorumcast.ordering.past import Placed
from quorumcast.ordering.state import root_of

#: Said now and then, whatever happens: counted, unless a script wants to see them.
BACKGROUND = ("Survey", "Standing", "Taken")


# ------------------------------------------------------------------- lines


class Action(NamedTuple):
    """Something that a node did: to whom, if it is a message, and what."""

    to: tuple[NodeId, ...]
    text: str

    def print(self, others: Collection[NodeId]) -> str:
        """The same as text; `others` are the other brokers of the cell."""
        if not self.to:
            return self.text
        readers = "brokers" if set(self.to) == set(others) else " ".join(sorted(self.to))
        return f"> {readers}: {self.text}"


class Transcript:
    """The lines of one block.

    Nodes that do the same in one millisecond share a line, as long as nobody could see a changed
    order: a reader gets messages in the order in which they were sent, and what a node does by
    itself stays between the messages before and after it.
    """

    def __init__(self, others_of: Callable[[NodeId], Collection[NodeId]]) -> None:
        #: The other brokers of the cell, in the epoch that a node goes by.
        self._others_of = others_of
        #: Instant by instant, node by node; the other brokers at the time come with it.
        self._instants: dict[int, dict[NodeId, list[Action]]] = {}
        self._others: dict[tuple[int, NodeId], Collection[NodeId]] = {}
        self._hidden: Counter[str] = Counter()

    def _actions(self, now: int, node: NodeId) -> list[Action]:
        self._others.setdefault((now, node), self._others_of(node))
        return self._instants.setdefault(now, {}).setdefault(node, [])

    def act(self, now: int, node: NodeId, text: str) -> None:
        """A node does something by itself."""
        self._actions(now, node).append(Action((), text))

    def send(self, now: int, node: NodeId, to: Iterable[NodeId], text: str) -> None:
        """A node sends a message; others that it has just sent it to share its line."""
        actions = self._actions(now, node)
        readers = tuple(to)
        for place in reversed(range(len(actions))):
            earlier = actions[place]
            if not earlier.to or not set(readers).isdisjoint(earlier.to):
                break
            if earlier.text == text:
                actions[place] = Action((*earlier.to, *readers), text)
                return
        actions.append(Action(readers, text))

    def hide(self, kind: str, count: int) -> None:
        """Messages of a kind are counted alone."""
        self._hidden[kind] += count

    def lines(self) -> list[str]:
        """Everything so far, for a script."""
        found = [
            f"{now:5} {' '.join(sorted(nodes))} {said}"
            for now, actions in self._instants.items()
            for said, nodes in self._shared(now, actions)
        ]
        if self._hidden:
            counts = ", ".join(f"{count} {kind}" for kind, count in sorted(self._hidden.items()))
            found.append(f"      (not shown: {counts})")
        return found or ["(silence)"]

    def _shared(
        self, now: int, instant: dict[NodeId, list[Action]]
    ) -> list[tuple[str, list[NodeId]]]:
        """What was done in an instant, and by whom."""
        lines: list[tuple[str, list[NodeId]]] = []
        for node, actions in sorted(instant.items()):
            #: The last line for each reader; "" for what the node did by itself.
            last: dict[str, int] = {}
            for action in actions:
                concerned = ("", *action.to) if action.to else tuple(last)
                after = max((last.get(reader, -1) for reader in concerned), default=-1)
                said = action.print(self._others[now, node])
                place = after + 1
                while place < len(lines) and lines[place][0] != said:
                    place += 1
                if place == len(lines):
                    lines.append((said, []))
                lines[place][1].append(node)
                last.update(dict.fromkeys(action.to or ("",), place))
        return lines


# ------------------------------------------------------------------- names


def stream_name(stream: Stream) -> str:
    """A stream as people call it in a script."""
    if stream.publisher == CELL:
        return {EPOCHS: "epoch", GENESIS: "genesis"}.get(stream, "order")
    name = str(stream.publisher)
    if stream.line is not None:
        epoch = (stream.incarnation - resumable(stream.line, 0)) >> 1
        name += f"@line{stream.line}.{epoch}"
    elif stream.incarnation != 1:
        name += f"@{stream.incarnation}"
    return name if stream.lane is Lane.DATA else f"{name}/history"


def regency_name(regency: int) -> str:
    """A regency, with its epoch unless that is the first."""
    epoch = regency - within_epoch(regency)
    number = next(e for e in range(1, 1000) if first_regency(e) == epoch)
    return f"r{within_epoch(regency)}" if number == 1 else f"e{number}.r{within_epoch(regency)}"


class DigestNames:
    """Digests by what people know of them; what was never seen is `?`."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {b"": "nothing", value_of(digest, ()): "empty"}
        self._batches = self._states = self._chains = 0
        #: What stands at each number of a stream, as far as anybody voted for it.
        self._numbers: dict[tuple[Stream, int], bytes] = {}

    # -------------------------------------------------------------- learning

    def learn(self, stream: Stream, bodies: Iterable[bytes]) -> None:
        """These contents will be spoken of by their digests."""
        for body in bodies:
            if digest(body) not in self._names:
                self._names[digest(body)] = self._contents(stream, body)

    def _contents(self, stream: Stream, body: bytes) -> str:
        if stream == EPOCHS:
            return "manifest"
        history = read_history(body, stream)
        if history is not None:
            statement = history[1]
            return f"H{statement.index}={statement.first}:{self.run(statement.digests)}"
        labelled = unlabel(body)
        return (body if labelled is None else labelled[1]).decode()

    def _learn_run(self, stream: Stream, first: int, run: bytes) -> None:
        self._names[root(first, run)] = self.run(run)
        for number, one in enumerate(split_digests(run), first):
            self._numbers.setdefault((stream, number), one)

    def _name_batch(self, batch: Batch) -> str:
        value = value_of(digest, batch)
        if value not in self._names:
            self._names[value] = chr(ord("A") + self._batches)
            self._batches += 1
        return self._names[value]

    def _name_state(self, state: bytes) -> str:
        if state not in self._names:
            self._states += 1
            self._names[state] = f"S{self._states}"
        return self._names[state]

    def _name_chain(self, chain: bytes) -> str:
        if chain not in self._names:
            self._chains += 1
            self._names[chain] = f"c{self._chains}"
        return self._names[chain]

    # -------------------------------------------------------------- printing

    def one(self, value: bytes) -> str:
        """What a digest stands for."""
        return self._names.get(value, "?")

    def run(self, run: bytes) -> str:
        """The contents of a run."""
        return "[" + " ".join(map(self.one, split_digests(run))) + "]"

    def batch(self, batch: Batch) -> str:
        """The runs of a batch."""
        return f"{self._name_batch(batch)}=[{'; '.join(map(self._item, batch))}]"

    def _item(self, item: Item) -> str:
        if item.stream == GENESIS:
            known = sum(life != bytes(DIGEST_SIZE) for life in split_digests(item.digests))
            return f"genesis of {known} lives"
        if item.stream == EPOCHS:
            return f"epoch {item.first}"
        return f"{stream_name(item.stream)} {item.first}:{self.run(item.digests)[1:-1]}"

    def message(self, message: Message) -> str:
        """One line for a message."""
        stream: Stream | None = getattr(message, "stream", None)
        if isinstance(message, Publish | Contents | ChainRun | Vote | Regained | Offer):
            self._learn_run(message.stream, message.first, message.digests)
        about = "" if stream is None else f" {stream_name(stream)}"
        return f"{type(message).__name__}{about}{self._details(message)}{self._ordering(message)}"

    def _details(self, message: Message) -> str:
        match message:
            case Open(base=base, fresh=fresh):
                return f" base={base} fresh={fresh}"
            case ChainRun(first=first, digests=run, order=order, vouchers=vouchers):
                macs = " ".join(f"{v.author}>{v.reader}" for v in vouchers)
                return f" {first}:{self.run(run)} by {'-'.join(order)} macs {macs}"
            case Vote(first=first, digests=run, order=order, vouchers=vouchers):
                way = f" by {'-'.join(order)}" if order else ""
                macs = " macs " + " ".join(v.author for v in vouchers) if vouchers else ""
                return f" {first}:{self.run(run)}{way}{macs}"
            case Publish() | Contents() | Regained() | Offer():
                return f" {message.first}:{self.run(message.digests)}"
            case Echo(first=first, run=run) | Ready(first=first, run=run):
                return f" {first}:{self.one(run)}"
            case Ack():
                return self._ack(message)
            case Outlived(newest=newest):
                return f" newest={newest}"
            case Subscribe(cursors=cursors, bodies=wanted):
                wants = "".join(f" {stream_name(c.stream)}={c.next}" for c in cursors)
                return wants + (" with bodies" if wanted else "")
            case Positions(positions=positions):
                return "".join(map(_position, positions)) or " none"
            case Regain(first=first, count=count, bodies=wanted):
                return f" {first} count={count}" + (" with bodies" if wanted else "")
            case Pull(first=first, count=count) | Missed(first=first, count=count):
                return f" {first} count={count}"
            case Attest(number=number, first=first):
                return f" {first}..{number}"
            case Checkpoint(statement=signed):
                return self._segment(signed)
            case Accusation(evidence=evidence):
                return f" {evidence.kind.value} {evidence.accused}"
            case Refuse(reason=reason):
                return f" {reason}"
            case _:
                return ""

    def _ack(self, ack: Ack) -> str:
        said = f" upto={ack.upto} credit={ack.credit}"
        said += f" settled={ack.settled}" if ack.settled else ""
        said += f" missed={ack.missed}" if ack.missed else ""
        return said + (f" chain={self._name_chain(ack.chain)}" if ack.chain else "")

    def _segment(self, signed: Signed) -> str:
        """What a broker signs about a segment, and whether it is what was voted for."""
        said = parse_statement(signed.payload)
        if not isinstance(said, SegmentStatement):
            return " nonsense"
        numbers = range(said.first, said.first + said.count)
        run = b"".join(self._numbers.get((said.stream, number), b"") for number in numbers)
        contents = self.run(run) if root(said.first, run) == said.root else "[something else]"
        return f" {stream_name(said.stream)} {said.first}:{contents} {said.basis.value}"

    def record(self, record: Record) -> str:
        """One line for what is written to disk."""
        match record:
            case Voted(instance=instance, accepted=(regency, value), written=written):
                claim = Claim(instance, max(regency, 0), value, written)
                return f"Voted {self._claim(claim)}"
            case Stored(offer=offer):
                return f"Stored {stream_name(offer.stream)} {offer.first}:{self.run(offer.digests)}"
            case Placed(channel=channel, position=position, digests=run):
                return f"Placed {channel} at {position}:{self.run(run)}"
            case Held(channel=channel, base=base, filling=filling):
                return f"Held {channel} from {base} on" + (", filling" if filling else "")
            case Decided(instance=instance, batch=batch):
                return f"Decided i{instance} {self._name_batch(batch)}"
            case Moved(regency=regency):
                return f"Moved {regency_name(regency)}"
            case Snapshot(instance=instance):
                return f"Snapshot i{instance}"
            case _:
                return type(record).__name__

    # ----------------------------------------------------------- total order

    def _ordering(self, message: Message) -> str:
        match message:
            case Propose(regency=regency, instance=instance, batch=batch):
                return f" {regency_name(regency)} i{instance} {self.batch(batch)}"
            case Write() | Accept():
                where = f"{regency_name(message.regency)} i{message.instance}"
                return f" {where} {self.one(message.value)}"
            case Stop(regency=regency):
                return f" {regency_name(regency)}"
            case StopData(statement=signed):
                return self._word(signed)
            case Sync(regency=regency, statements=words):
                signers = " ".join(sorted(signed.signer for signed in words))
                return f" {regency_name(regency)} on the words of {signers}"
            case Standing():
                return self._standing(message)
            case Fetch(values=values, offers=offers):
                wanted = [self.one(value) for value in values]
                return " " + " ".join(
                    wanted + [f"{stream_name(o.stream)} {o.next}" for o in offers]
                )
            case Fetched(batch=batch):
                return f" {self.batch(batch)}"
            case LogQuery(first=first, stuck=stuck):
                return f" from i{first}" + (" stuck" if stuck else "")
            case LogPart(first=first, batches=batches):
                return f" from i{first}: {' '.join(map(self._name_batch, batches))}"
            case StateHead(checkpoint=checkpoint, chunks=chunks):
                state = self._name_state(root_of(chunks))
                return f" {state} at i{checkpoint}, chunks 0..{len(chunks) - 1}"
            case PastQuery(channel=channel, before=before):
                return f" {channel} before {before}"
            case Past(position=position, digests=run):
                return f" at {position}:{self.run(run)}"
            case ChunkQuery() | Chunk():
                return f" {message.index} of the state at i{message.checkpoint}"
            case Taken(statement=signed):
                word = parse_epoch(signed.payload)
                return " nonsense" if word is None else f" epoch {word.epoch}"
            case _:
                return ""

    def _word(self, signed: Signed) -> str:
        word = parse_stop(signed.payload)
        if word is None:
            return " nonsense"
        blind = f" blind up to i{word.blind}" if word.blind else ""
        stable = f" stable=i{word.stable}" if word.stable else ""
        claims = "".join(f"; {self._claim(claim)}" for claim in word.claims)
        return f" {regency_name(word.regency)} decided=i{word.decided}{stable}{blind}{claims}"

    def _claim(self, claim: Claim) -> str:
        wrote = " ".join(f"{self.one(v)} in {regency_name(r)}" for v, r in claim.written)
        said = f"i{claim.instance} wrote {wrote or 'nothing'}"
        if not claim.value:
            return f"{said}, accepted nothing"
        return f"{said}, accepted {self.one(claim.value)} in {regency_name(claim.regency)}"

    def _standing(self, said: Standing) -> str:
        words = [regency_name(said.regency), f"decided=i{said.decided}", f"heard=i{said.heard}"]
        if said.checkpoint:
            words.append(f"checkpoint={self._name_state(said.root)} at i{said.checkpoint}")
        words += [] if said.synced else ["unsynced"]
        words += ["listens"] if said.fresh else []
        words += [f"awake={' '.join(said.awake)}"] if said.awake else []
        return " " + " ".join(words)


def _position(position: Position) -> str:
    over = " over" if position.over else ""
    return f" {stream_name(position.stream)}={position.base}..{position.next - 1}{over}"
