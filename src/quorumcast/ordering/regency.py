"""From one leader to the next: what the signed words of n-f brokers make of every open instance.

A broker's word (`StopStatement`) says for each instance which value it last *accepted*, in which
regency, and which values it *wrote*. The new leader shows the words that it relies on to everybody
(SYNC), and everybody draws the same conclusion from them with `conclude`:

    a value v accepted in regency r is kept if
      A1  a quorum accepted nothing there, or in an earlier regency, or v itself in r, and
      A2  f+1 brokers wrote v in r or later (so v is not a liar's invention);
    an instance is empty if a quorum accepted nothing in it;
    otherwise more words are needed.

Why a decided value survives: a quorum accepted v in r, so every quorum of A1 has a correct broker
in common with it, which only words about v in r, or about later regencies, satisfy; and in later
regencies no correct broker wrote anything but v, for the same reason, so A2 fails for others.

Source: FIT-Broker §4.4.3 and Mod-SMaRt's STOP, STOP-DATA, SYNC; the rule is that of PBFT without
signatures on the fast path (Castro and Liskov 2002). Ours: nothing but these words is signed, so
that ordering costs no signature per instance. The document's crash-mode election (appendix B) has
no such phase and can lose a decided batch; here both quorum systems share this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quorumcast.core.ids import NodeId
from quorumcast.core.limits import MAX_WRITTEN
from quorumcast.core.quorum import OrderQuorums, Protection
from quorumcast.core.statements import Claim, Signed, StopStatement, canonical, parse_stop
from quorumcast.crypto.keyring import Keyring

#: Values written in one instance that a broker answers for; older ones only help to prove.
KEPT_VALUES = MAX_WRITTEN


class Conclusion(msgspec.Struct, frozen=True):
    """What a new leader must propose before anything of its own."""

    #: Enough brokers have decided everything up to here.
    low: int
    #: For every instance from low+1 on that may have been decided: its value, b"" if empty.
    values: dict[int, bytes]

    @property
    def high(self) -> int:
        """The last instance that is not free."""
        return max(self.values, default=self.low)


def conclude(quorums: OrderQuorums, words: Sequence[StopStatement]) -> Conclusion | None:
    """What follows from the words of n-f or more brokers; None if more are needed.

    Every instance that a word names is looked at, however far it is: brokers may be many instances
    apart. What nobody but a liar names does not stand, at most more words are needed to see it; a
    value that stands was written by a correct broker, so it is not far beyond the others.
    """
    if len(words) < quorums.responders:
        return None
    low = max(
        _rank((word.decided for word in words), quorums.anchored),
        _rank((word.stable for word in words), quorums.believe),
    )
    claims = [{claim.instance: claim for claim in word.claims} for word in words]
    named = {i for found in claims for i, claim in found.items() if claim.value and i > low}
    values: dict[int, bytes] = {}
    for instance in named:
        value = _value_of(quorums, words, [found.get(instance) for found in claims], instance)
        if value is None:
            return None
        values[instance] = value
    last = max((instance for instance, value in values.items() if value), default=low)
    for instance in range(low + 1, last + 1):
        value = values.get(instance)
        if value is None:
            value = _value_of(quorums, words, [found.get(instance) for found in claims], instance)
        if value is None:
            return None
        values[instance] = value
    return Conclusion(low, {instance: values[instance] for instance in range(low + 1, last + 1)})


def _rank(numbers: Iterable[int], rank: int) -> int:
    ordered = sorted(numbers, reverse=True)
    return ordered[rank - 1] if len(ordered) >= rank else 0


def _value_of(
    quorums: OrderQuorums,
    words: Sequence[StopStatement],
    claims: Sequence[Claim | None],
    instance: int,
) -> bytes | None:
    # Whoever has forgotten what it did in this instance says nothing about it.
    heard = [
        claim or Claim(instance)
        for word, claim in zip(words, claims, strict=True)
        if word.blind < instance
    ]
    accepted = sorted(
        {(claim.regency, claim.value) for claim in heard if claim.value}, reverse=True
    )
    for regency, value in accepted:
        agree = sum(
            not claim.value
            or claim.regency < regency
            or (claim.regency, claim.value) == (regency, value)
            for claim in heard
        )
        proof = sum(any(v == value and r >= regency for v, r in claim.written) for claim in heard)
        if agree >= quorums.decide and proof >= quorums.believe:
            return value
    if sum(not claim.value for claim in heard) >= quorums.decide:
        return b""
    return None


def sign_word(
    keyring: Keyring,
    log: Protection,
    regency: int,
    decided: int,
    stable: int,
    blind: int,
    claims: tuple[Claim, ...],
    birth: bytes,
) -> Signed:
    """This broker's word on its way into a regency."""
    return keyring.identity.sign(
        canonical(
            StopStatement(
                cell=keyring.instance,
                log=log,
                broker=keyring.identity.name,
                regency=regency,
                decided=decided,
                stable=stable,
                blind=blind,
                claims=claims,
                birth=birth,
            )
        )
    )


def read_word(
    keyring: Keyring, members: Sequence[NodeId], log: Protection, signed: Signed
) -> StopStatement | None:
    """A member's word, if it is one and the signature holds."""
    word = parse_stop(signed.payload)
    if (
        word is None
        or word.broker != signed.signer
        or word.broker not in members
        or (word.cell, word.log) != (keyring.instance, log)
        or len({claim.instance for claim in word.claims}) != len(word.claims)
        or not keyring.signature_holds(signed)
    ):
        return None
    return word
