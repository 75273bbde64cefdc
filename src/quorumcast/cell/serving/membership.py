"""Epoch changes: when a broker adopts the next manifest, and how it proves that to others.

Where there is a log the manifest is ordered in it (`ordering.epochs`); with two logs, in both. A
broker that has executed it signs an `EpochStatement` and sends it to the others, but stays in its
epoch until 2f+1 brokers *of the next epoch* have signed (f+1 where brokers only crash). Then f+1
correct ones hold what was decided before, enough for others to learn it; and the statements prove
the epoch, so one broker that has moved brings all the others along. If brokers moved as soon as
they executed, those left might be too few to finish what one of them had decided. With only f+1
statements, one by a liar or a leaving broker, one broker could know what no other believes.

Without a log the operator's file is enough. But where it changes the brokers or f, a broker adopts
it only once n-f brokers are in the present epoch or a later one: quorums of successive epochs
intersect, others need not. A broker that waits repeats its own statement, which others may lack.

A broker that has been away gets the statements with the farewell of others (`EpochProof`). It
believes f+1 of them by brokers of the epoch that it knows, about any later epoch; where brokers
only crash, one.
"""

from __future__ import annotations

from collections.abc import Iterable

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
from quorumcast.crypto.identity import signature_holds
from quorumcast.manifest.files import manifest_digest, parse_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.view import View

#: The interval at which a broker that waits for others repeats its statement.
REMIND_MS = 300


class NewManifest(Event, frozen=True):
    """The operator's manifest file has a newer epoch; the driver has read and checked it."""

    data: bytes


class EpochProof(Event, frozen=True):
    """A manifest and statements of brokers that adopted it, from a peer; not checked yet."""

    data: bytes
    statements: tuple[Signed, ...]


class Adopt(Effect, frozen=True):
    """Call `adopt` with this manifest, and greet all peers anew.

    `statements` prove to others that it was decided; there are none without a log.
    """

    data: bytes
    statements: tuple[Signed, ...] = ()


class Remind(Timer, frozen=True, tag=True):
    """Repeat that an epoch has been decided."""

    epoch: int


def statements_needed(present: Manifest, following: Manifest) -> int:
    """How many statements of known brokers on a later epoch include one of a correct broker.

    One is enough if brokers only crash in both epochs. It must be: while a broker was away, the
    cell may have replaced all brokers that it knows but one.
    """
    protections = {
        protection
        for manifest in (present, following)
        for protection in (*(c.policy.protection for c in manifest.channels), *manifest.logs)
    }
    return 1 if protections == {Protection.CRASH} else present.quorums.one_correct


class Membership:
    """The epoch of one broker, and the change to the next."""

    __slots__ = (
        "_digest",
        "_moving",
        "_pending",
        "_proof",
        "_read",
        "_sequencers",
        "_signed",
        "_view",
        "next_manifest",
    )

    def __init__(
        self,
        view: View,
        sequencers: Sequencers,
        proof: tuple[Signed, ...] = (),
    ) -> None:
        self._view = view
        self._sequencers = sequencers
        #: A manifest of the operator that waits for enough brokers to be in the present epoch.
        self._pending: bytes | None = None
        #: Statements of members, this broker among them, on the present epoch and on a later one.
        self._signed: dict[int, dict[NodeId, Signed]] = {}
        #: The statements that made this broker adopt the present epoch, also of former members.
        self._proof = proof
        #: The last manifest that was read, with its bytes and digest, since it is needed often.
        self._read: tuple[bytes, Manifest, bytes] | None = None
        #: The digest of the present manifest.
        self._digest = manifest_digest(view.manifest)
        #: Whether `Adopt` was returned; `begin_epoch` follows.
        self._moving = False
        #: The manifest that `Adopt` named; empty until then.
        self.next_manifest = b""
        self._sign_present()

    def _sign_present(self) -> None:
        """Without a log, sign the present epoch: there is nothing to be executed first."""
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
        self._signed.setdefault(manifest.epoch, {})[me] = signed
        return signed

    @property
    def statements(self) -> tuple[Signed, ...]:
        """The known statements that prove to others that the present epoch was decided."""
        said = {signed.signer: signed for signed in self._proof}
        return tuple((said | self._signed.get(self._view.epoch, {})).values())

    @property
    def torn(self) -> bool:
        """Whether two logs have decided different manifests: this broker can adopt neither."""
        return len({sequencer.passed for sequencer in self._sequencers.all().values()} - {None}) > 1

    def older_logs(self) -> tuple[Protection, ...]:
        """The logs of this epoch, for a broker that starts in the next one."""
        return tuple(self._sequencers.all())

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {"epoch_statements": sum(map(len, self._signed.values()))}

    def begin_epoch(self) -> None:
        """Go on in a new epoch."""
        manifest = self._view.manifest
        self._digest = manifest_digest(manifest)
        self._pending = None
        self._moving = False
        self.next_manifest = b""
        known = self._signed.get(manifest.epoch, {})
        self._signed = {manifest.epoch: {n: s for n, s in known.items() if manifest.broker(n)}}
        self._sign_present()

    # --------------------------------------------------------------- moving on

    def _on_new_manifest(self, data: bytes, now: Millis) -> list[Effect]:
        """The operator's file has a newer manifest; the driver has checked it."""
        if self._sequencers.all():
            return self._sequencers.offer_epoch(data, now)
        self._pending = data
        waits = SetTimer(Remind(self._parse(data).epoch), REMIND_MS)
        return self._maybe_take() or [waits]

    def _maybe_take(self) -> list[Effect]:
        """Without a log: adopt the operator's manifest, one step at a time."""
        if self._pending is None or self._moving:
            return []
        following = self._parse(self._pending)
        steps = (following.broker_ids, following.f) != (self._view.brokers, self._view.quorums.f)
        there = {broker for signed in self._signed.values() for broker in signed}
        if steps and len(there) < self._view.quorums.responders:
            return []
        return self._move(self._pending, ())

    def _move(self, data: bytes, statements: tuple[Signed, ...]) -> list[Effect]:
        self._moving = True
        self.next_manifest = data
        self._proof = statements
        return [Adopt(data, statements)]

    def handle(self, event: Event, now: Millis) -> list[Effect] | None:
        """Handle an event that is about epochs alone; None if it is not."""
        match event:
            case Receive(sender=sender, message=Taken() as message):
                return self._on_taken(sender, message)
            case TimerFired(timer=Remind() as timer):
                return self._on_remind(timer)
            case NewManifest(data=data):
                return self._on_new_manifest(data, now)
            case EpochProof():
                return self._on_proof(event)
            case _:
                return None

    def look(self, event: Event) -> list[Effect]:
        """Move to the next epoch if an event has made that possible."""
        if isinstance(event, Connected):
            return self._on_connected(event.peer)
        return self._maybe_pass()

    def _maybe_pass(self) -> list[Effect]:
        """Move once every log has executed the next epoch, here and at enough brokers."""
        data = None if self._moving else self._sequencers.passed
        if data is None:
            return []
        effects: list[Effect] = []
        epoch = self._parse(data).epoch
        me = self._view.me
        if me not in self._signed.get(epoch, {}):
            signed = self._sign(self._parse(data))
            effects += [Send(self._view.peers, Taken(signed)), SetTimer(Remind(epoch), REMIND_MS)]
        said = tuple(signed for signed in self._signed[epoch].values() if self._about(signed, data))
        if self._learnable(self._parse(data), said):
            effects += self._move(data, said)
        return effects

    def _learnable(self, following: Manifest, statements: Iterable[Signed]) -> bool:
        """Whether so many brokers of an epoch have executed it that others can learn it there."""
        staying = [signed for signed in statements if following.broker(signed.signer) is not None]
        return len(staying) >= anchored(following, faulty_across(self._view.quorums.f, following.f))

    def _on_remind(self, timer: Remind) -> list[Effect]:
        """Repeat this broker's statement while it waits."""
        wanted = timer.epoch if self._sequencers.all() else self._view.epoch
        mine = self._signed.get(wanted, {}).get(self._view.me)
        if mine is None or timer.epoch <= self._view.epoch:
            return []
        return [Send(self._view.peers, Taken(mine)), SetTimer(timer, REMIND_MS)]

    def _on_connected(self, peer: NodeId) -> list[Effect]:
        """Send this broker's statements to a broker that can be reached."""
        if peer not in self._view.peers:
            return []
        me = self._view.me
        return [Send((peer,), Taken(said[me])) for said in self._signed.values() if me in said]

    def _on_taken(self, sender: NodeId, message: Taken) -> list[Effect]:
        """A broker is in an epoch, or will be as soon as enough are."""
        signed = message.statement
        statement = parse_epoch(signed.payload)
        present = self._view.epoch
        if statement is None or sender != signed.signer or not self._genuine(signed, statement):
            return [Drop(DropReason.BAD_SIGNATURE, sender)]
        if statement.epoch < present:
            return [Drop(DropReason.OUT_OF_WINDOW, sender)]
        if statement.epoch == present and statement.digest != self._digest:
            return [Drop(DropReason.CONFLICT, sender)]
        self._note(sender, statement.epoch, signed)
        return [*self._maybe_pass(), *self._maybe_take()]

    def _note(self, sender: NodeId, epoch: int, signed: Signed) -> None:
        """Keep a statement; on later epochs one of each broker, for only one can be next."""
        present = self._view.epoch
        for other in [e for e in self._signed if present < e and present < epoch]:
            self._signed[other].pop(sender, None)
            if not self._signed[other]:
                del self._signed[other]
        self._signed.setdefault(epoch, {})[sender] = signed

    def _genuine(self, signed: Signed, statement: EpochStatement) -> bool:
        return (
            statement.broker == signed.signer
            and statement.cell == self._view.manifest.cell
            and statement.broker in self._view.brokers
            and self._view.keyring.signature_holds(signed)
        )

    def _about(self, signed: Signed, data: bytes) -> EpochStatement | None:
        """The statement that was signed, if it is about this manifest."""
        _, manifest, digest = self._look_up(data)
        statement = parse_epoch(signed.payload)
        wanted = (manifest.epoch, digest)
        if statement is None or (statement.epoch, statement.digest) != wanted:
            return None
        return statement

    def _on_proof(self, event: EpochProof) -> list[Effect]:
        """A peer shows the epoch of others: adopt it, if enough statements hold."""
        if self._moving:
            return []
        try:
            parse_manifest(
                event.data, operator=self._view.manifest.operator, newer_than=self._view.epoch
            )
        except UsageError:
            return []
        following = self._parse(event.data)
        known: dict[NodeId, Signed] = {}
        theirs: dict[NodeId, Signed] = {}
        for signed in event.statements:
            signer, statement = signed.signer, self._about(signed, event.data)
            if statement is None:
                continue
            if signer not in known and self._genuine(signed, statement):
                known[signer] = signed
            # Members of the epoch to come have the keys that its manifest names.
            keys = None if signer in theirs else following.keys.get(signer)
            said = (statement.broker, statement.cell) == (signer, self._view.manifest.cell)
            if keys is not None and said and signature_holds(signed, keys.verify_key):
                theirs[signer] = signed
        statements = theirs | known
        enough = len(known) >= statements_needed(self._view.manifest, following)
        if enough and self._learnable(following, statements.values()):
            return self._move(event.data, tuple(statements.values()))
        if not self._sequencers.all():
            # Too few to believe that this epoch was decided; but they are not behind any more.
            for signer, signed in known.items():
                self._note(signer, following.epoch, signed)
        return self._maybe_take()
