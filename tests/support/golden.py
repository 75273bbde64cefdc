"""Golden scripts: a few machines on a perfect network, and every word they say, line by line.

A script is a text file of blocks, as in etcd/raft's data-driven tests: commands, a line of dashes,
and what they made the machines say. `pytest --rewrite` writes the second half anew; the difference
is reviewed like code.

    cell policy=ab [n=4] [f=1] [alpha=2]   brokers b1 … bn, connected to one another
    publisher NAME                         a publisher, connected to every broker
    subscriber NAME                        a subscriber of "orders", connected to every broker
    publish NAME TEXT…                     one publication per word
    lie NAME to=b1,b2 publish 1 TEXT…      send a run as only a faulty publisher would
    lie NAME to=b1 history 1 1 TEXT…       send a history (index, first number, contents)
    lose from=b2 to=bob kind=Vote lane=data    lose such messages (any part may be left out)
    heal                                   lose nothing any longer
    disconnect NAME NAME, connect …        cut a link, mend it
    restart BROKER                         a broker without its memory, connected again
    run MS                                 let time pass
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tests.support.cells import LANE, ORDERS, STREAM, Cell, digest, digests
from tests.support.network import Loss, Network

from quorumcast.broadcast.application import (
    Acknowledged,
    Concluded,
    Contradicted,
    Deliver,
    Gap,
    Join,
    Proven,
    Recalled,
    Refused,
    Renewed,
    Submit,
)
from quorumcast.broadcast.contract import Vouch
from quorumcast.broadcast.messages import Ack, ChainRun, Contents, Echo, Open, Publish, Pull, Ready
from quorumcast.broadcast.signed_history import read_history
from quorumcast.cell.messages import (
    Attest,
    Checkpoint,
    Missed,
    Positions,
    Refuse,
    Regain,
    Regained,
    Subscribe,
    Survey,
    Taken,
    Vote,
)
from quorumcast.cell.serving.membership import Adopt
from quorumcast.core.ids import NodeId, Stream, split_digests
from quorumcast.core.machine import (
    Accuse,
    CancelTimer,
    Drop,
    Effect,
    Forget,
    Persist,
    Send,
    SetTimer,
    Suspect,
)
from quorumcast.core.message import Message
from quorumcast.core.statements import SegmentStatement, parse_statement
from quorumcast.crypto.digest import root
from quorumcast.manifest.policy import Policy

RULE = "----"


def rewritten(script: str) -> str:
    """The script with what its commands really make the machines say."""
    scene = Scene()
    blocks = []
    for block in script.strip().split("\n\n"):
        commands = block.partition(f"\n{RULE}")[0].splitlines()
        said = [
            line
            for command in commands
            if not command.startswith("#")
            for line in scene.do(command)
        ]
        blocks.append("\n".join([*commands, RULE, *(said or ["(silence)"])]))
    return "\n\n".join(blocks) + "\n"


class Scene:
    """The machines of one script."""

    def __init__(self) -> None:
        self._network = Network(self._watch)
        self._said: list[str] = []
        self._names = Names()
        self._cell = Cell(Policy.named("ab"))

    def do(self, command: str) -> list[str]:
        """Carry out one command; what was said meanwhile."""
        self._said = []
        verb, *words = command.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        act: Callable[[list[str], dict[str, str]], None] = getattr(self, f"_do_{verb}")
        act(plain, options)
        return self._said

    # ------------------------------------------------------------- commands

    def _do_cell(self, _: list[str], options: dict[str, str]) -> None:
        policy = Policy.named(options["policy"], alpha=int(options.get("alpha", 2)))
        self._cell = Cell(policy, int(options.get("n", 4)), int(options.get("f", 1)))
        brokers = self._brokers
        for broker in brokers:
            self._network.machines[broker] = self._cell.broker(broker)
        for place, one in enumerate(brokers):
            for other in brokers[place + 1 :]:
                self._network.connect(one, other)

    def _do_publisher(self, words: list[str], _: dict[str, str]) -> None:
        name = NodeId(words[0])
        publisher = self._network.machines[name] = self._cell.publisher(name)
        self._connect_all(name)
        self._network.carry_out(name, publisher.open(ORDERS))

    def _do_subscriber(self, words: list[str], _: dict[str, str]) -> None:
        name = NodeId(words[0])
        self._network.machines[name] = self._cell.subscriber(name)
        self._connect_all(name)
        self._network.happen(name, Join(ORDERS))

    def _do_publish(self, words: list[str], _: dict[str, str]) -> None:
        contents = tuple(word.encode() for word in words[1:])
        self._names.learn(contents)
        self._network.happen(NodeId(words[0]), Submit(ORDERS, contents))

    def _do_lie(self, words: list[str], options: dict[str, str]) -> None:
        name, kind, first, *texts = words
        to = tuple(NodeId(reader) for reader in options["to"].split(","))
        contents = tuple(text.encode() for text in texts)
        stream = STREAM
        if kind == "history":
            self._names.learn(contents[1:])
            contents = (self._cell.history(int(first), int(texts[0]), *contents[1:]),)
            stream = LANE
        self._names.learn(contents)
        message = Publish(stream, int(first), digests(*contents))
        self._network.carry_out(NodeId(name), [Send(to, message, contents)])

    def _do_lose(self, _: list[str], options: dict[str, str]) -> None:
        self._network.losses.append(_loss(options))

    def _do_heal(self, _: list[str], __: dict[str, str]) -> None:
        self._network.losses.clear()

    def _do_disconnect(self, words: list[str], _: dict[str, str]) -> None:
        self._network.disconnect(NodeId(words[0]), NodeId(words[1]))

    def _do_connect(self, words: list[str], _: dict[str, str]) -> None:
        self._network.connect(NodeId(words[0]), NodeId(words[1]))

    def _do_restart(self, words: list[str], _: dict[str, str]) -> None:
        broker = NodeId(words[0])
        peers = [peer for peer in self._network.machines if peer != broker]
        for peer in peers:
            self._network.disconnect(broker, peer)
        self._network.machines[broker] = self._cell.broker(broker)
        for peer in peers:
            self._network.connect(broker, peer)

    def _do_run(self, words: list[str], _: dict[str, str]) -> None:
        self._network.run(int(words[0]))

    @property
    def _brokers(self) -> tuple[NodeId, ...]:
        return self._cell.manifest.broker_ids

    def _connect_all(self, name: NodeId) -> None:
        for broker in self._brokers:
            self._network.connect(name, broker)

    # -------------------------------------------------------------- the log

    def _watch(self, now: int, node: NodeId, effect: Effect) -> None:
        said = self._describe(node, effect)
        if said:
            self._said.append(f"{now:5} {said}")

    def _describe(self, node: NodeId, effect: Effect) -> str:
        names = self._names
        match effect:
            case Send(to=to, message=Survey() | Positions()) if set(to) <= set(self._brokers):
                return ""  # brokers ask one another now and then what they hold
            case Send(message=Taken()):
                return ""  # said with every connection, and about no publication
            case Send(to=to, message=message, bodies=contents):
                names.learn(contents)
                with_bodies = " +bodies" if contents else ""
                lost = [
                    r for r in to if any(lose(node, r, effect) for lose in self._network.losses)
                ]
                fate = f"  (lost: {' '.join(lost)})" if lost else ""
                return f"{node} > {' '.join(to)}: {names.message(message)}{with_bodies}{fate}"
            case Deliver():
                how = f"votes {' '.join(effect.votes) or 'none'}"
                how += f", dissent {' '.join(effect.dissent)}" if effect.dissent else ""
                how += ", by history" if effect.by_history else ""
                return f"{node} DELIVERS {effect.number} {effect.body.decode()} ({how})"
            case Acknowledged(upto=upto):
                return f"{node} IS ACKNOWLEDGED up to {upto}"
            case Renewed(stream=stream):
                return f"{node} GOES ON as incarnation {stream.incarnation}"
            case Suspect(node=suspect, reason=reason, number=number):
                return f"{node} suspects {suspect}: {reason.value} at {number}"
            case Accuse(evidence=evidence):
                verdict = self._cell.court.why_evidence_fails(evidence) or "holds"
                return f"{node} ACCUSES {evidence.accused}: {evidence.kind.value}; court: {verdict}"
            case Adopt():
                return f"{node} MOVES ON to another epoch"
            case Drop(reason=why, sender=sender):
                return f"{node} drops from {sender}: {why.value}"
            case Gap(first=first, upto=upto):
                return f"{node} ANNOUNCES A GAP {first}..{upto}"
            case Refused(reason=why):
                return f"{node} IS REFUSED: {why}"
            case Concluded():
                return f"{node} HAS CONCLUDED its stream"
            case Contradicted(number=number):
                return f"{node} IS CONTRADICTED about {number}"
            case Proven(receipt=receipt):
                return f"{node} HAS A RECEIPT for {receipt.number}"
            case Recalled(position=position):
                return f"{node} RECALLS {position}"
            case SetTimer() | CancelTimer() | Persist() | Vouch() | Forget():
                return ""
            case _:
                raise AssertionError(f"nothing is said about {type(effect).__name__}")


class Names:
    """Digests by the contents that people know."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}

    def learn(self, contents: Iterable[bytes]) -> None:
        """These contents will be spoken of by their digests."""
        for body in contents:
            history = read_history(body, STREAM)
            if history is None:
                self._names[digest(body)] = body.decode()
            else:
                statement = history[1]
                named = self.run(statement.digests)
                self._names[digest(body)] = f"H{statement.index}={statement.first}:{named}"

    def run(self, run: bytes) -> str:
        """The contents of a run."""
        return "[" + " ".join(self._names[one] for one in split_digests(run)) + "]"

    def _root(self, first: int, run: bytes) -> str:
        for one, name in self._names.items():
            if root(first, one) == run:
                return f"[{name}]"
        return self._names.get(run, "[?]")

    def message(self, message: Message) -> str:
        """One line for a message."""
        stream: Stream | None = getattr(message, "stream", None)
        lane = "/history" if stream is not None and stream == LANE else ""
        return f"{type(message).__name__}{lane}{self._details(message)}"

    def _details(self, message: Message) -> str:
        match message:
            case Open(base=base, fresh=fresh):
                return f" base={base} fresh={fresh}"
            case Publish(first=first, digests=run) | Contents(first=first, digests=run):
                self._names[root(first, run)] = self.run(run)
                return f" {first}:{self.run(run)}"
            case ChainRun(first=first, digests=run, order=order, vouchers=vouchers):
                macs = " ".join(f"{v.author}>{v.reader}" for v in vouchers)
                return f" {first}:{self.run(run)} by {'-'.join(order)} macs {macs}"
            case Vote(first=first, digests=run, order=order, vouchers=vouchers):
                way = f" by {'-'.join(order)}" if order else ""
                macs = " macs " + " ".join(v.author for v in vouchers) if vouchers else ""
                return f" {first}:{self.run(run)}{way}{macs}"
            case Echo(first=first, run=run) | Ready(first=first, run=run):
                return f" {first}:{self._root(first, run)}"
            case Ack():
                return (
                    f" upto={message.upto} credit={message.credit} settled={message.settled}"
                    f" missed={message.missed}"
                )
            case Subscribe(cursors=cursors, bodies=wanted):
                wants = "".join(f" {_lane(c.stream)}={c.next}" for c in cursors)
                return wants + (" with bodies" if wanted else "")
            case Positions(positions=positions):
                return "".join(f" {_lane(p.stream)}={p.base}..{p.next - 1}" for p in positions)
            case Regained(first=first, digests=run):
                return f" {first}:{self.run(run)}"
            case Regain(first=first, count=count, bodies=wanted):
                return f" {first} count={count}" + (" with bodies" if wanted else "")
            case Pull(first=first, count=count) | Missed(first=first, count=count):
                return f" {first} count={count}"
            case Attest(number=number):
                return f" {number}"
            case Checkpoint(statement=signed):
                statement = parse_statement(signed.payload)
                if not isinstance(statement, SegmentStatement):
                    return " nonsense"
                last = statement.first + statement.count - 1
                return f" {statement.first}..{last} {statement.basis.value}"
            case Refuse(reason=reason):
                return f" {reason}"
            case _:  # whatever has no details; no script has a total order
                return ""


def _lane(stream: Stream) -> str:
    return stream.lane.name.lower()


def _loss(options: dict[str, str]) -> Loss:
    def listed(key: str, value: str) -> bool:
        return key not in options or value in options[key].split(",")

    def lost(sender: NodeId, reader: NodeId, send: Send) -> bool:
        kind = type(send.message).__name__
        stream: Stream | None = getattr(send.message, "stream", None)
        return (
            listed("from", sender)
            and listed("to", reader)
            and listed("kind", kind)
            and listed("lane", "" if stream is None else _lane(stream))
        )

    return lost


def scripts(folder: Path) -> list[Path]:
    """All scripts of a folder."""
    return sorted(folder.glob("*.txt"))
