"""Golden scripts: a few machines on a perfect network, and every word they say, line by line.

A script is a text file of blocks, as in etcd/raft's data-driven tests: commands, a line of dashes,
and what they made the machines say (`transcript` says how to read it). `pytest --rewrite` writes
the second half anew; the difference is reviewed like code.

    cell policy=ab [n=4] [f=1] [alpha=2] [LIMIT=NUMBER]   brokers b1 … bn, linked to one another;
                                           "total+durable" and the like have disks
    publisher NAME [incarnation=1] [idle]  a publisher, linked to every broker; an idle one opens
                                           no stream by itself
    subscriber NAME                        a subscriber of "orders", linked to every broker
    publish NAME TEXT… [each=MS]           one publication per word; at once, or one after the other
    resume NAME line=1 epoch=1             open a stream that an earlier life may have begun
    publish NAME TEXT… line=1 epoch=1      publish on it
    conclude NAME line=1 epoch=1           everything has been published on it
    prove NAME NUMBER                      ask for a receipt of what NAME has delivered
    lie NAME to=b1,b2 publish 1 TEXT…      send a run as only a faulty publisher would
    lie NAME to=b1 history 1 1 TEXT…       send a history (index, first number, contents)
    fault BROKER NAME                      a broker misbehaves by a name of the fault catalogue
    lose from=b2 to=bob kind=Vote lane=data    lose such messages (any part may be left out)
    heal                                   lose nothing any longer
    disconnect NAME [NAME], connect …      cut a link, or all links of a node; mend them
    stop NAME, start BROKER [wiped]        a process dies; it starts with its disk, or a new one.
                                           What is on its way over a link that is cut is lost
    epoch add=b5 | remove=b4 [to=b1,b2]    the operator signs the next epoch; brokers read the file
    hide KIND…, show KIND…                 count such messages alone; print them. `show disk`
                                           prints what is written to disk as well
    quiet, loud                            count everything alone; print it again
    run MS                                 let time pass
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
from tests.support.cell_network import CellNetwork
from tests.support.cells import LANE, ORDERS, STREAM, Cell, digests, identity_of
from tests.support.golden_named import ConsumerScript
from tests.support.network import Loss
from tests.support.transcript import BACKGROUND, DigestNames, Transcript, stream_name

from quorumcast.broadcast.application import (
    Acknowledged,
    Concluded,
    Contradicted,
    Deliver,
    DeliverGap,
    Join,
    Prove,
    Proven,
    Recalled,
    Refused,
    Renewed,
    Submit,
)
from quorumcast.broadcast.contract import Vouch
from quorumcast.broadcast.messages import Publish
from quorumcast.cell.messages import Positions, Survey
from quorumcast.cell.publishing.publisher import Publisher
from quorumcast.cell.serving.membership import Adopt
from quorumcast.core.ids import NodeId, Stream, resumable
from quorumcast.core.limits import Limits
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
from quorumcast.core.statements import Evidence, Receipt
from quorumcast.faults.cell.catalogue import make_fault
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.manifest.build import add_broker, remove_broker
from quorumcast.manifest.files import parse_manifest
from quorumcast.manifest.policy import Policy

RULE = "----"
CLIENTS = ("alice", "bob", "carol", "dave")

Options = dict[str, str]


def rewritten(script: str) -> str:
    """The script with what its commands really make the machines say."""
    running = ConsumerScript() if "\ngroup " in script else CellScript()
    blocks = []
    for block in script.strip().split("\n\n"):
        commands = block.partition(f"\n{RULE}")[0].splitlines()
        said = running.play([command for command in commands if not command.startswith("#")])
        blocks.append("\n".join([*commands, RULE, *said]))
    running.end()
    return "\n\n".join(blocks) + "\n"


class CellScript:
    """The machines of one script."""

    def __init__(self) -> None:
        self._names = DigestNames()
        self._hidden = set(BACKGROUND)
        self._shows_disk = False
        self._quiet = False
        self._use(Cell(Policy.named("ab")))
        #: What subscribers have delivered, by name and number or position.
        self._delivered: dict[tuple[NodeId, int], Deliver] = {}

    def _use(self, cell: Cell) -> None:
        self._cell = cell
        self._network = CellNetwork(cell, self._watch, self._note)
        self._transcript = Transcript(self._others_of)

    def play(self, commands: list[str]) -> list[str]:
        """Carry out the commands of one block; what was said meanwhile."""
        self._transcript = Transcript(self._others_of)
        for command in commands:
            verb, *words = command.split()
            options = dict(word.split("=", 1) for word in words if "=" in word)
            plain = [word for word in words if "=" not in word]
            act: Callable[[list[str], Options], None] = getattr(self, f"_do_{verb}")
            act(plain, options)
        return self._transcript.lines()

    def end(self) -> None:
        """Nothing has to be stopped."""

    def _others_of(self, node: NodeId) -> list[NodeId]:
        return [broker for broker in self._network.manifest_of(node).broker_ids if broker != node]

    # ----------------------------------------------------------------- nodes

    def _do_cell(self, _: list[str], options: Options) -> None:
        limits = {key: int(options[key]) for key in Limits.__struct_fields__ if key in options}
        policy = Policy.parse(options["policy"], alpha=int(options.get("alpha", 2)))
        policy = msgspec.structs.replace(policy, limits=Limits(**limits))
        policy.check()
        n, f = int(options.get("n", 4)), int(options.get("f", 1))
        self._use(Cell(policy, n, f, clients=CLIENTS))
        for broker in self._cell.manifest.broker_ids:
            self._network.start_broker(broker)

    def _do_publisher(self, words: list[str], options: Options) -> None:
        name = NodeId(words[0])
        incarnation = int(options.get("incarnation", 1))
        publisher = self._cell.publisher(name, incarnation)
        self._network.enter(name, publisher)
        if "idle" not in words:
            self._network.carry_out(name, publisher.open(ORDERS))

    def _do_subscriber(self, words: list[str], _: Options) -> None:
        name = NodeId(words[0])
        self._network.enter(name, self._cell.subscriber(name))
        self._network.happen(name, Join(ORDERS))

    def _do_publish(self, words: list[str], options: Options) -> None:
        name, contents = NodeId(words[0]), tuple(word.encode() for word in words[1:])
        each = int(options.get("each", 0))
        for part in [(body,) for body in contents] if each else [contents]:
            self._network.happen(name, Submit(ORDERS, part, resumed=_resumed(options)))
            self._network.run(each)

    def _do_resume(self, words: list[str], options: Options) -> None:
        name, machine = self._publisher(words)
        self._network.carry_out(name, machine.open(ORDERS, resumed=_resumed(options)))

    def _do_conclude(self, words: list[str], options: Options) -> None:
        name, machine = self._publisher(words)
        self._network.carry_out(name, machine.conclude(ORDERS, _resumed(options)))

    def _publisher(self, words: list[str]) -> tuple[NodeId, Publisher]:
        machine = self._network.machines[NodeId(words[0])]
        assert isinstance(machine, Publisher)
        return NodeId(words[0]), machine

    def _do_prove(self, words: list[str], _: Options) -> None:
        name = NodeId(words[0])
        delivered = self._delivered[name, int(words[1])]
        self._network.happen(name, Prove(*delivered.provable))

    # ----------------------------------------------------------------- lies

    def _do_lie(self, words: list[str], options: Options) -> None:
        name, kind, first, *texts = words
        contents = tuple(text.encode() for text in texts)
        stream = STREAM
        if kind == "history":
            self._names.learn(STREAM, contents[1:])
            contents = (self._cell.history(int(first), int(texts[0]), *contents[1:]),)
            stream = LANE
        message = Publish(stream, int(first), digests(*contents))
        self._network.carry_out(NodeId(name), [Send(_listed(options["to"]), message, contents)])

    def _do_fault(self, words: list[str], options: Options) -> None:
        broker = NodeId(words[0])
        victims = _listed(options["victims"]) if "victims" in options else ()
        context = FaultContext(
            broker,
            self._cell.manifest,
            self._cell.keyring(broker),
            random.Random(1),
            victims=victims,
        )
        self._network.faults[broker] = make_fault(words[1], context)

    # ---------------------------------------------------------------- world

    def _do_lose(self, _: list[str], options: Options) -> None:
        self._network.losses.append(_loss(options))

    def _do_heal(self, _: list[str], __: Options) -> None:
        self._network.losses.clear()

    def _do_disconnect(self, words: list[str], _: Options) -> None:
        for link in self._links(words):
            self._network.severed.add(link)
            if link in self._network.links:
                self._network.disconnect(*sorted(link))

    def _do_connect(self, words: list[str], _: Options) -> None:
        for link in self._links(words):
            self._network.severed.discard(link)
            if link not in self._network.links:
                self._network.greet(*sorted(link))

    def _links(self, words: list[str]) -> list[frozenset[NodeId]]:
        """The link between two nodes, or all that a broker has."""
        node, *others = map(NodeId, words)
        named = others or [other for other in self._network.machines if other != node]
        return [frozenset((node, other)) for other in named]

    def _do_stop(self, words: list[str], _: Options) -> None:
        for word in words:
            self._network.stop(NodeId(word))

    def _do_start(self, words: list[str], _: Options) -> None:
        for word in words:
            if word != "wiped":
                self._network.start_broker(NodeId(word), wiped="wiped" in words)

    def _do_epoch(self, _: list[str], options: Options) -> None:
        present = self._network.file
        if "add" in options:
            new = NodeId(options["add"])
            following = add_broker(present, new, identity_of(new), "localhost", 7100)
        else:
            following = remove_broker(present, NodeId(options["remove"]))
        self._network.publish_epoch(following)
        for broker in _listed(options["to"]) if "to" in options else present.broker_ids:
            self._network.show_file(broker)

    def _do_run(self, words: list[str], _: Options) -> None:
        self._network.run(int(words[0]))

    def _do_hide(self, words: list[str], _: Options) -> None:
        self._hidden |= set(words)

    def _do_show(self, words: list[str], _: Options) -> None:
        self._hidden -= set(words)
        self._shows_disk |= "disk" in words

    def _do_quiet(self, _: list[str], __: Options) -> None:
        self._quiet = True

    def _do_loud(self, _: list[str], __: Options) -> None:
        self._quiet = False

    def _hides(self, kind: type) -> bool:
        return self._quiet or kind.__name__ in self._hidden

    # -------------------------------------------------------------- the log

    def _note(self, node: NodeId, text: str, *to: NodeId) -> None:
        if to:
            self._transcript.send(self._network.now, node, to, text)
        else:
            self._transcript.act(self._network.now, node, text)

    def _watch(self, now: int, node: NodeId, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._watch_send(now, node, effect)
        elif said := self._describe(node, effect):
            if self._hides(type(effect)):
                self._transcript.hide(type(effect).__name__, 1)
            else:
                self._transcript.act(now, node, said)

    def _watch_send(self, now: int, node: NodeId, send: Send) -> None:
        kind = type(send.message)
        stream: Stream | None = getattr(send.message, "stream", None)
        if stream is not None:
            self._names.learn(stream, send.bodies)
        said = self._names.message(send.message)
        # Brokers answer surveys with the message that subscribers get, too.
        answer = kind is Positions and set(send.to) <= set(self._others_of(node))
        if self._hides(Survey if answer else kind):
            self._transcript.hide(kind.__name__, len(send.to))
            return
        lost = [to for to in send.to if not self._network.reaches(node, to, send)]
        fate = f"  (lost: {' '.join(lost)})" if lost else ""
        bodies = " +bodies" if send.bodies else ""
        self._transcript.send(now, node, send.to, f"{said}{bodies}{fate}")

    def _describe(self, node: NodeId, effect: Effect) -> str:
        match effect:
            case Deliver():
                self._delivered[node, effect.position or effect.number] = effect
                return _delivery(effect)
            case Acknowledged(stream=stream, upto=upto):
                return f"IS ACKNOWLEDGED up to {upto} on {stream_name(stream)}"
            case Renewed(stream=stream, former=former):
                return f"GOES ON as {stream_name(stream)} instead of {stream_name(former)}"
            case Suspect(node=suspect, reason=reason, number=number):
                return f"suspects {suspect}: {reason.value}" + (f" at {number}" if number else "")
            case Accuse(evidence=evidence):
                return self._accusation(evidence)
            case Adopt(data=data, statements=words):
                signers = " ".join(sorted(signed.signer for signed in words))
                shown = f" on the words of {signers}" if words else ""
                return f"TAKES EPOCH {parse_manifest(data).epoch}{shown}"
            case Drop(reason=why, sender=sender):
                return f"drops from {sender}: {why.value}"
            case DeliverGap(stream=stream, first=first, upto=upto):
                return f"ANNOUNCES A GAP {stream_name(stream)} {first}..{upto}"
            case Refused(reason=why):
                return f"IS REFUSED: {why}"
            case Concluded(stream=stream):
                return f"HAS CONCLUDED {stream_name(stream)}"
            case Contradicted(stream=stream, number=number):
                return f"IS CONTRADICTED {stream_name(stream)} about {number}"
            case Proven(receipt=receipt):
                return self._receipt(receipt)
            case Recalled(position=position):
                return f"RECALLS {position}"
            case Persist(record=record):
                return f"writes {self._names.record(record)}" if self._shows_disk else ""
            case SetTimer() | CancelTimer() | Vouch() | Forget():
                return ""
            case _:
                raise AssertionError(f"nothing is said about {type(effect).__name__}")

    def _accusation(self, evidence: Evidence) -> str:
        verdict = self._cell.court.why_evidence_fails(evidence) or "holds"
        by = "".join(f" {signed.signer}" for signed in evidence.witnesses)
        witnesses = f" by{by}" if by else ""
        return f"ACCUSES {evidence.accused}: {evidence.kind.value}{witnesses}; court: {verdict}"

    def _receipt(self, receipt: Receipt) -> str:
        votes = self._cell.manifest.quorums.one_correct
        verdict = self._cell.court.why_receipt_fails(receipt, votes) or "holds"
        signers = " ".join(self._cell.court.receipt_signers(receipt))
        about = f"{stream_name(receipt.stream)} {receipt.number}"
        return f"HAS A RECEIPT for {about}, signed by {signers}; court: {verdict}"


def _delivery(deliver: Deliver) -> str:
    what = f"{stream_name(deliver.stream)} {deliver.number}: {deliver.body.decode()}"
    where = f"at position {deliver.position}, " if deliver.position else ""
    how = f"votes {' '.join(deliver.votes) or 'none'}"
    how += f", dissent {' '.join(deliver.dissent)}" if deliver.dissent else ""
    how += ", by history" if deliver.by_history else ""
    return f"DELIVERS {what} ({where}{how})"


def _listed(names: str) -> tuple[NodeId, ...]:
    return tuple(NodeId(name) for name in names.split(","))


def _resumed(options: Options) -> int:
    """The incarnation of a stream that is resumed; 0 for the publisher's own."""
    return resumable(int(options["line"]), int(options["epoch"])) if "line" in options else 0


def _loss(options: Options) -> Loss:
    def listed(key: str, value: str) -> bool:
        return key not in options or value in options[key].split(",")

    def lost(sender: NodeId, reader: NodeId, send: Send) -> bool:
        kind = type(send.message).__name__
        stream: Stream | None = getattr(send.message, "stream", None)
        return (
            listed("from", sender)
            and listed("to", reader)
            and listed("kind", kind)
            and listed("lane", "" if stream is None else stream.lane.name.lower())
        )

    return lost


def scripts(folder: Path) -> list[Path]:
    """All scripts of a folder."""
    return sorted(folder.glob("*.txt"))
