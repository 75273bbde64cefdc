"""From one epoch to the next: when a broker goes by another manifest, and how others know.

Where there is a log the manifest is ordered in it (`ordering.epochs`); with two logs, in both. A
broker that has executed it signs a word (`EpochStatement`) and says so to the others, but stays in
its epoch and goes on helping there until 2f+1 brokers *of the next epoch* have said the same (f+1
where brokers only crash). Then f+1 correct ones hold what was decided up to it, which is as many as
others need to learn it from; and signed words can be shown to anybody. So one broker that has moved
on is enough to bring all the others along. If everybody moved upon executing, those who are left
might be too few to finish what one had decided; and with f+1 words of which one is a liar's, or of
a broker that leaves, a single broker would know what nobody believes it alone.

Where there is no log the operator's file is enough. But where it changes the brokers or f, a broker
takes it only once n-f brokers go by the present epoch or a later one: quorums intersect from one
step to the next, and not beyond. A broker that waits for their words says its own again: it may be
what another one waits for.

Whoever has been away finds the words in the farewells of the others (`Passage`). It believes f+1 of
them by brokers of the epoch that it knows, about whichever epoch they go by now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quorumcast.cell.messages import Taken
from quorumcast.cell.serving.sequencers import Sequencers, anchored
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import (
    Connected,
    Drop,
    DropReason,
    Effect,
    Event,
    Receive,
    Send,
    SetTimer,
    Timer,
    TimerFired,
)
from quorumcast.core.quorum import Protection, faulty_across
from quorumcast.core.statements import EpochStatement, Signed, canonical, parse_epoch
from quorumcast.crypto.directory import PublicKeys
from quorumcast.crypto.identity import signature_holds
from quorumcast.manifest.files import manifest_digest, parse_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.view import View

#: How often a broker that waits to move on says so.
REMIND_MS = 300


class Renewal(Event, frozen=True):
    """The operator's manifest file has a newer epoch; the driver has read and checked it."""

    data: bytes


class Passage(Event, frozen=True):
    """Somebody shows a manifest and the words of brokers that go by it; nothing is checked yet."""

    data: bytes
    words: tuple[Signed, ...]


class Adopt(Effect, frozen=True):
    """The time has come to go by this manifest: `adopt` it, and greet everybody anew.

    `words` prove to others that it was decided; none where nothing has to be.
    """

    data: bytes
    words: tuple[Signed, ...] = ()


class Remind(Timer, frozen=True, tag=True):
    """Say again that an epoch has been decided."""

    epoch: int


class Membership:
    """Which epoch one broker goes by."""

    __slots__ = (
        "_digest",
        "_moving",
        "_pending",
        "_proof",
        "_read",
        "_sequencers",
        "_view",
        "_words",
    )

    def __init__(
        self,
        view: View,
        sequencers: Sequencers,
        proof: tuple[Signed, ...] = (),
    ) -> None:
        self._view = view
        self._sequencers = sequencers
        #: A manifest of the operator's that waits for the present epoch to be taken by enough.
        self._pending: bytes | None = None
        #: The words of members, this broker among them, on the present epoch and on one to come.
        self._words: dict[int, dict[NodeId, Signed]] = {}
        #: The words on the present epoch that made this broker take it, also of who has left.
        self._proof = proof
        #: The last manifest that was read, with its bytes and what stands for it: it is looked at
        #: again and again.
        self._read: tuple[bytes, Manifest, bytes] | None = None
        #: What stands for the present manifest.
        self._digest = manifest_digest(view.manifest)
        #: Whether this broker has said that it moves on; `adopt` follows.
        self._moving = False
        self._say_present()

    def _say_present(self) -> None:
        """Without a log a broker that goes by an epoch is all that there is to say."""
        if not self._sequencers.all():
            self._sign(self._view.manifest)

    def _parse(self, data: bytes) -> Manifest:
        """A manifest that was checked before it came here."""
        return self._look_up(data)[1]

    def _look_up(self, data: bytes) -> tuple[bytes, Manifest, bytes]:
        if self._read is None or self._read[0] != data:
            manifest = parse_manifest(data, operator=self._view.manifest.operator)
            self._read = (data, manifest, manifest_digest(manifest))
        return self._read

    def _sign(self, manifest: Manifest) -> Signed:
        me = self._view.me
        statement = EpochStatement(
            cell=manifest.cell, broker=me, epoch=manifest.epoch, digest=manifest_digest(manifest)
        )
        signed = self._view.keyring.identity.sign(canonical(statement))
        self._words.setdefault(manifest.epoch, {})[me] = signed
        return signed

    @property
    def words(self) -> tuple[Signed, ...]:
        """What proves to others that the present epoch was decided, as far as it is known."""
        said = {signed.signer: signed for signed in self._proof}
        return tuple((said | self._words.get(self._view.epoch, {})).values())

    @property
    def torn(self) -> bool:
        """Whether two logs have decided different manifests: this broker can take neither."""
        return len({sequencer.passed for sequencer in self._sequencers.all().values()} - {None}) > 1

    def older_logs(self) -> tuple[Protection, ...]:
        """The logs that there are, for whoever starts in the next epoch."""
        return tuple(self._sequencers.all())

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {"words": sum(map(len, self._words.values()))}

    def begin_epoch(self) -> None:
        """The broker goes by another manifest now."""
        manifest = self._view.manifest
        self._digest = manifest_digest(manifest)
        self._pending = None
        self._moving = False
        known = self._words.get(manifest.epoch, {})
        self._words = {manifest.epoch: {n: s for n, s in known.items() if manifest.broker(n)}}
        self._say_present()

    # --------------------------------------------------------------- moving on

    def _on_renewal(self, data: bytes, now: Millis) -> list[Effect]:
        """The operator's file has a newer manifest; the driver has checked it."""
        if self._sequencers.all():
            return self._sequencers.offer_epoch(data, now)
        self._pending = data
        waits = SetTimer(Remind(self._parse(data).epoch), REMIND_MS)
        return self._maybe_take() or [waits]

    def _maybe_take(self) -> list[Effect]:
        """Without a log: one step at a time, by the operator's word."""
        if self._pending is None or self._moving:
            return []
        following = self._parse(self._pending)
        steps = (following.broker_ids, following.f) != (self._view.brokers, self._view.quorums.f)
        there = {broker for words in self._words.values() for broker in words}
        if steps and len(there) < self._view.quorums.responders:
            return []
        return self._move(self._pending, ())

    def _move(self, data: bytes, words: tuple[Signed, ...]) -> list[Effect]:
        self._moving = True
        self._proof = words
        return [Adopt(data, words)]

    def handle(self, event: Event, now: Millis) -> list[Effect] | None:
        """What follows from an event that is about epochs alone; None if it is not."""
        match event:
            case Receive(sender=sender, message=Taken() as message):
                return self._on_taken(sender, message)
            case TimerFired(timer=Remind() as timer):
                return self._on_remind(timer)
            case Renewal(data=data):
                return self._on_renewal(data, now)
            case Passage():
                return self._on_passage(event)
            case _:
                return None

    def look(self, event: Event) -> list[Effect]:
        """See whether an event has brought the next epoch nearer."""
        if isinstance(event, Connected):
            return self._on_connected(event.peer)
        return self._maybe_pass()

    def _maybe_pass(self) -> list[Effect]:
        """See whether every log has executed the next epoch, and whether enough brokers have."""
        data = None if self._moving else self._sequencers.passed
        if data is None:
            return []
        effects: list[Effect] = []
        epoch = self._parse(data).epoch
        me = self._view.me
        if me not in self._words.get(epoch, {}):
            signed = self._sign(self._parse(data))
            effects += [Send(self._view.peers, Taken(signed)), SetTimer(Remind(epoch), REMIND_MS)]
        words = tuple(word for word in self._words[epoch].values() if self._speaks_for(word, data))
        if self._learnable(self._parse(data), words):
            effects += self._move(data, words)
        return effects

    def _learnable(self, following: Manifest, words: Iterable[Signed]) -> bool:
        """Whether so many brokers of an epoch have executed it that others can learn it there."""
        staying = [signed for signed in words if following.broker(signed.signer) is not None]
        return len(staying) >= anchored(following, faulty_across(self._view.quorums.f, following.f))

    def _on_remind(self, timer: Remind) -> list[Effect]:
        """Time has passed, and this broker is still here."""
        wanted = timer.epoch if self._sequencers.all() else self._view.epoch
        mine = self._words.get(wanted, {}).get(self._view.me)
        if mine is None or timer.epoch <= self._view.epoch:
            return []
        return [Send(self._view.peers, Taken(mine)), SetTimer(timer, REMIND_MS)]

    def _on_connected(self, peer: NodeId) -> list[Effect]:
        """A broker can be reached: it may lack our word."""
        if peer not in self._view.peers:
            return []
        me = self._view.me
        return [Send((peer,), Taken(words[me])) for words in self._words.values() if me in words]

    def _on_taken(self, sender: NodeId, message: Taken) -> list[Effect]:
        """A broker goes by an epoch, or would as soon as enough do."""
        signed = message.statement
        word = parse_epoch(signed.payload)
        present = self._view.epoch
        if word is None or sender != signed.signer or not self._genuine(signed, word):
            return [Drop(DropReason.BAD_SIGNATURE, sender)]
        if word.epoch < present:
            return [Drop(DropReason.OUT_OF_WINDOW, sender)]
        if word.epoch == present and word.digest != self._digest:
            return [Drop(DropReason.CONFLICT, sender)]
        self._note(sender, word.epoch, signed)
        return [*self._maybe_pass(), *self._maybe_take()]

    def _note(self, sender: NodeId, epoch: int, signed: Signed) -> None:
        """Keep a word; of epochs to come one of each broker, for only one can be next."""
        present = self._view.epoch
        for other in [e for e in self._words if present < e and present < epoch]:
            self._words[other].pop(sender, None)
            if not self._words[other]:
                del self._words[other]
        self._words.setdefault(epoch, {})[sender] = signed

    def _genuine(self, signed: Signed, word: EpochStatement) -> bool:
        return (
            word.broker == signed.signer
            and word.cell == self._view.manifest.cell
            and word.broker in self._view.brokers
            and self._view.keyring.signature_holds(signed)
        )

    def _speaks_for(self, signed: Signed, data: bytes) -> EpochStatement | None:
        """What a broker says, if it is about this manifest."""
        _, manifest, digest = self._look_up(data)
        word = parse_epoch(signed.payload)
        wanted = (manifest.epoch, digest)
        return None if word is None or (word.epoch, word.digest) != wanted else word

    def _about(
        self,
        data: bytes,
        words: Iterable[Signed],
        directory: Mapping[NodeId, PublicKeys] | None = None,
    ) -> tuple[Signed, ...]:
        """The words, one of each broker, that speak for this manifest.

        Those of brokers of the present epoch, or of whoever a directory names.
        """
        found: dict[NodeId, Signed] = {}
        for signed in words:
            word = self._speaks_for(signed, data)
            if word is None or signed.signer in found:
                continue
            keys = None if directory is None else directory.get(signed.signer)
            if (
                self._genuine(signed, word)
                if directory is None
                else keys is not None
                and (word.broker, word.cell) == (signed.signer, self._view.manifest.cell)
                and signature_holds(signed, keys.verify_key)
            ):
                found[word.broker] = signed
        return tuple(found.values())

    def _on_passage(self, event: Passage) -> list[Effect]:
        """Somebody shows where the others are."""
        if self._moving:
            return []
        try:
            parse_manifest(
                event.data, operator=self._view.manifest.operator, newer_than=self._view.epoch
            )
        except UsageError:
            return []
        following = self._parse(event.data)
        known = self._about(event.data, event.words)
        theirs = self._about(event.data, event.words, following.keys)
        words = {signed.signer: signed for signed in (*theirs, *known)}
        enough = len(known) >= self._view.quorums.one_correct
        if enough and self._learnable(following, words.values()):
            return self._move(event.data, tuple(words.values()))
        if not self._sequencers.all():
            # Too few to believe where they are; but they are not behind any more.
            for signed in known:
                self._note(signed.signer, following.epoch, signed)
        return self._maybe_take()
