"""Documents that nodes must accept or reject (manifests, receipts, evidence), and quorum sizes.

A run shows nodes few invalid documents: operators sign manifests that the commands have checked,
and correct nodes collect valid receipts and evidence. So every scenario also draws documents with
one flaw each and passes them to the code that nodes and users rely on. The expected verdict follows
from how the document was made, or from verifiers independent of that code. Quorum sizes are
compared with a brute-force search for the smallest number that satisfies their definition.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from quorumcast.broadcast.application import Proven
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Accuse
from quorumcast.core.quorum import Broadcast, OrderQuorums, Protection, Quorums, receipt_votes
from quorumcast.core.statements import Evidence, Receipt
from quorumcast.crypto.identity import Identity
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.manifest.build import repeatable_seeds
from quorumcast.manifest.files import SignedManifest, manifest_digest, parse_manifest, sign_manifest
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.manifest.successor import check_successor
from quorumcast.sim.cell.cells import identity_of
from quorumcast.sim.cell.judges.checkers import flaw_of, flaw_of_receipt
from quorumcast.sim.cell.judges.facts import CellFacts
from quorumcast.sim.cell.mangling import Altering
from quorumcast.sim.kernel.judging import EffectChecker

#: Flawed manifests of each kind in a run; receipts and evidence judged; forged versions of each.
DRAWN, JUDGED, VERSIONS = 4, 4, 6

# ------------------------------------------------------------------ manifests


def _with_broker(manifest: Manifest, **changes: object) -> Manifest:
    first, *others = manifest.brokers
    return replace(manifest, brokers=(replace(first, **changes), *others))


def _with_channel(manifest: Manifest, **changes: object) -> Manifest:
    first, *others = manifest.channels
    return replace(manifest, channels=(replace(first, **changes), *others))


def _with_policy(manifest: Manifest, **changes: object) -> Manifest:
    return _with_channel(manifest, policy=replace(manifest.channels[0].policy, **changes))


def _with_limits(manifest: Manifest, **changes: object) -> Manifest:
    limits = manifest.channels[0].policy.limits
    return _with_policy(manifest, limits=replace(limits, **changes))


def _beyond(protection: Protection, n: int, broadcast: Broadcast) -> int:
    """The smallest f that n brokers cannot tolerate."""
    if protection is Protection.BYZANTINE:
        return (n + 2) // 3
    return (
        (n + 1) // 2 if protection is Protection.TRUSTED or broadcast is Broadcast.CONSENSUS else n
    )


def _flawed(m: Manifest) -> dict[str, Manifest]:
    """Manifests that every correct node must reject."""
    policy, window = m.channels[0].policy, m.channels[0].policy.limits.window
    retained = max(window, 2 * policy.alpha_ceiling, policy.limits.segment) - 1
    wrong_broadcast = (
        Broadcast.DIRECT if policy.protection is Protection.BYZANTINE else Broadcast.AUTHENTICATED
    )
    return {
        "no brokers": replace(m, brokers=()),
        "too many faulty brokers": replace(
            m, f=_beyond(policy.protection, len(m.brokers), policy.broadcast)
        ),
        "a negative f": replace(m, f=-1),
        "epoch 0": replace(m, epoch=0),
        "an unknown MAC": replace(m, mac="rot13"),
        "a broken MAC": replace(m, mac="hmac-md5"),
        "an unknown digest": replace(m, digest="crc32"),
        "a broken digest": replace(m, digest="md5"),
        "no cell": replace(m, cell=""),
        "a broker with a short key": _with_broker(m, verify_key=b"short"),
        "a broker without a usable key": _with_broker(m, exchange_key=bytes(32)),
        "a broker without a host": _with_broker(m, host=""),
        "a broker at no port": _with_broker(m, port=0),
        "a broker at port 65536": _with_broker(m, port=65536),
        "a broker with a seat's name": _with_broker(m, id="broker#1"),
        "a broker with a long name": _with_broker(m, id="b" * 1000),
        "one broker twice": replace(m, brokers=(*m.brokers, m.brokers[0])),
        "two brokers at one address": replace(
            m, brokers=(*m.brokers, replace(m.brokers[0], id="another"))
        ),
        "a client that is a broker": replace(
            m, clients=(*m.clients, replace(m.clients[0], id=m.broker_ids[0]))
        ),
        "one channel twice": replace(m, channels=(*m.channels, m.channels[0])),
        "a channel without a name": _with_channel(m, name=""),
        "rights of a stranger": _with_channel(m, publishers=("nobody",)),
        "a stranger that listens": _with_channel(m, subscribers=("nobody",)),
        "a broadcast that protects nobody": _with_policy(m, broadcast=wrong_broadcast),
        "a history that settles nothing": _with_policy(
            m, alpha=4, broadcast=Broadcast.BRACHA, protection=Protection.BYZANTINE
        ),
        "an alpha beyond the window": _with_policy(m, alpha=window + 1, alpha_max=0),
        "a negative alpha": _with_policy(m, alpha=-1, alpha_max=0),
        "a largest alpha below the least": _with_policy(m, alpha=4, alpha_max=3),
        "votes that count less far than the window": _with_limits(m, vote_window=window - 1),
        "less retained than is under way": _with_limits(m, retained_publications=retained),
        "no window": _with_limits(m, window=0),
        "too long between checkpoints": _with_limits(m, checkpoint=10_000),
        "too many batches under way": _with_limits(m, pipeline=10_000),
        "retained for no time": _with_limits(m, retained_ms=1),
        "a request that is valid for months": _with_limits(m, validity_ms=2**40),
    }


def _next(m: Manifest, **changes: object) -> Manifest:
    return replace(m, epoch=m.epoch + 1, **changes)


def _unsound(m: Manifest, spare: Manifest) -> dict[str, Manifest]:
    """Valid manifests that must not succeed this one."""
    policy, first = m.channels[0].policy, m.channels[0]
    more = [replace(b, id=NodeId(f"new-{b.id}"), port=b.port + 100) for b in spare.brokers[:2]]
    other = (
        Broadcast.BRACHA if policy.broadcast is not Broadcast.BRACHA else Broadcast.AUTHENTICATED
    )
    longer = replace(policy.limits, window=policy.limits.window - 1)
    found = {
        "two brokers more": _next(m, brokers=(*m.brokers, *more)),
        "one more and one less": _next(m, brokers=(*m.brokers[1:], more[0])),
        "two less": _next(m, brokers=m.brokers[2:]),
        "another order of brokers": _next(m, brokers=m.brokers[::-1]),
        "f and a broker at once": _next(m, f=m.f - 1, brokers=(*m.brokers, more[0])),
        "f by two": _next(m, f=m.f + 2),
        "another cell": _next(m, cell="another"),
        "another digest": _next(m, digest="blake2b"),
        "another MAC": _next(m, mac="hmac-sha256"),
        "another policy": _with_policy(_next(m), broadcast=other, alpha=0, alpha_max=0),
        "another journal": _with_policy(_next(m), journal=not policy.journal),
        "another window": _with_policy(_next(m), limits=longer),
        "another segment": _with_limits(_next(m), segment=policy.limits.segment + 1),
        "columns where there were none": _with_channel(_next(m), schema=(("a", "int64"),)),
    }
    if policy.total:
        return found | {
            "a log without channels": _next(m, channels=()),
            "another length of the log": _next(m, channels=(*m.channels, _longer(first))),
        }
    skipped = replace(m, epoch=m.epoch + 2, brokers=(*m.brokers, more[0]))
    found["a leap with other brokers"] = skipped
    if policy.chained:
        found["other brokers for chains"] = _next(m, brokers=(*m.brokers[1:],))
    return found


def _longer(channel: ChannelEntry) -> ChannelEntry:
    limits = replace(channel.policy.limits, pipeline=channel.policy.limits.pipeline + 1)
    return replace(channel, name="longer", policy=replace(channel.policy, limits=limits))


def _sound(m: Manifest, spare: Manifest) -> dict[str, Manifest]:
    """Manifests that may succeed this one."""
    one = replace(spare.brokers[0], id=NodeId("new"), port=spare.brokers[0].port + 100)
    policy = m.channels[0].policy
    found = {
        "one broker more": _next(m, brokers=(*m.brokers, one)),
        "a client less": _next(m, clients=m.clients[:-1]),
        "a new channel": _next(m, channels=(*m.channels, replace(m.channels[0], name="new"))),
        "the same again": _next(m),
        "a larger buffer": _with_limits(
            _next(m), publisher_buffer=policy.limits.publisher_buffer + 1
        ),
    }
    # Rights must not name a client that was removed.
    return {
        w: n for w, n in found.items() if w != "a client less" or "*" in n.channels[-1].publishers
    }


def examine_manifests(manifest: Manifest, operator: Identity, rng: random.Random) -> Iterator[str]:
    """Draw manifests with one flaw each, and valid ones; yield each wrong verdict."""
    written = msgspec.json.encode(sign_manifest(manifest, operator))
    if parse_manifest(written, operator=manifest.operator) != manifest:
        yield "a manifest reads back as another"
    for what, flawed in _some(_flawed(manifest), rng):
        data = msgspec.json.encode(_signed(flawed, operator))
        if _is_taken(data, operator=manifest.operator):
            yield f"a manifest with {what} is taken"
    for what, following in _some(_unsound(manifest, manifest), rng):
        if _may_follow(manifest, following):
            yield f"a running cell takes {what}"
    for what, following in _some(_sound(manifest, manifest), rng):
        if not _may_follow(manifest, following):
            yield f"a running cell refuses {what}"
        if manifest_digest(following) == manifest_digest(manifest):
            yield "one digest stands for two manifests"
    stranger = Identity(NodeId("stranger"), repeatable_seeds("strangers")("stranger"))
    later = msgspec.json.encode(_signed(_next(manifest), operator))
    by_stranger = _signed(replace(manifest, operator=stranger.verify_key), stranger)
    altered = SignedManifest(_next(manifest), sign_manifest(manifest, operator).signature)
    for what, data, options in (
        ("signed by somebody else", msgspec.json.encode(_signed(manifest, stranger)), {}),
        ("of another operator", msgspec.json.encode(by_stranger), {"operator": manifest.operator}),
        ("altered after it was signed", msgspec.json.encode(altered), {}),
        ("of an epoch that is known", written, {"newer_than": manifest.epoch}),
        ("cut short", written[:-1], {}),
    ):
        if _is_taken(data, **options):
            yield f"a manifest {what} is taken"
    if not _is_taken(later, operator=manifest.operator, newer_than=manifest.epoch):
        yield "the next manifest is refused"


def _some(found: dict[str, Manifest], rng: random.Random) -> list[tuple[str, Manifest]]:
    return rng.sample(list(found.items()), min(DRAWN, len(found)))


def _signed(manifest: Manifest, operator: Identity) -> SignedManifest:
    """A manifest signed without any check: an operator may use other tools."""
    payload = b"quorumcast manifest 1\0" + msgspec.msgpack.encode(manifest, order="deterministic")
    return SignedManifest(manifest, operator.sign(payload).signature.hex())


def _is_taken(data: bytes, **options: Any) -> bool:
    try:
        parse_manifest(data, **options)
    except UsageError:
        return False
    return True


def _may_follow(present: Manifest, following: Manifest) -> bool:
    try:
        check_successor(present, following)
    except UsageError:
        return False
    return True


# ----------------------------------------------------------------- thresholds


def _least(n: int, enough: Callable[[int], bool]) -> int:
    return next(k for k in range(n + 2) if k > n or enough(k))


def examine_quorums(n: int, f: int) -> Iterator[str]:
    """Compare thresholds with the smallest numbers that satisfy their definitions."""
    plain = Quorums(n, f)
    one_correct = _least(n, lambda k: k > f)
    share_correct = _least(n, lambda k: 2 * k - n > f)
    wanted = {
        "responders": (plain.responders, max(k for k in range(n + 1) if k + f <= n)),
        "one_correct": (plain.one_correct, one_correct),
        "intersecting": (plain.intersecting, share_correct),
        "echo": (plain.echo, share_correct),
        "ready_join": (plain.ready_join, one_correct),
        "ready_accept": (plain.ready_accept, share_correct),
        "chain_reach": (plain.chain_reach, one_correct),
    }
    if n > 3 * f:
        # Two chains of the pool share a correct broker; so do an echo quorum and a chain.
        pool, length = plain.chain_pool, plain.chain_length
        wanted["chain_pool"] = (pool, max(k for k in range(n + 1) if 2 * length - k > f))
        wanted["chain_length"] = (length, _least(n, lambda k: k - f > f))
        alike = _least(pool, lambda k: 2 * k - pool > f)
        wanted["alike_over_chains"] = (plain.alike_over_chains, alike)
        echoes = _least(n, lambda k: k > n - (length - f))
        wanted["echo_over_chain"] = (plain.echo_over_chain, max(echoes, n - f))
    for byzantine in (True, False):
        if n <= (3 if byzantine else 2) * f:
            continue
        order, lies = OrderQuorums(n, f, byzantine), f if byzantine else 0
        numbers = range(n + 1)
        wanted |= {
            f"decide ({byzantine})": (order.decide, min(k for k in numbers if 2 * k - n > lies)),
            f"responders ({byzantine})": (order.responders, n - f),
            f"believe ({byzantine})": (order.believe, min(k for k in numbers if k > lies)),
            # The answers include a broker that took part in each decision the amnesiac voted for.
            f"recall ({byzantine})": (
                order.recall,
                max(n - f - 1, n - order.decide + min(f, max(lies, 1))),
            ),
            f"anchored ({byzantine})": (
                order.anchored,
                min(k for k in numbers if k - f > lies),
            ),
        }
    for name, (is_, least) in wanted.items():
        if is_ != least:
            yield f"{name} of {n} brokers with f={f} is {is_}, and ought to be {least}"


# ------------------------------------------------------------------ the court


class SoundCourt(EffectChecker):
    """The court accepts receipts and evidence of correct nodes, and rejects altered ones.

    An altered document that is still valid may be accepted.
    """

    name = "Sound court"
    watches = frozenset((Proven, Accuse))

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._left = JUDGED

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Proven | Accuse) -> None:
        if not self._left:
            return
        self._left -= 1
        document = effect.receipt if isinstance(effect, Proven) else effect.evidence
        signed = document.statements if isinstance(document, Receipt) else document.against
        manifest = facts.signed_in(signed)
        if not _convinces(document, manifest):
            facts.violate(self.name, f"nobody believes what {node} collected")
        for _ in range(VERSIONS):
            signer = self._rng.choice(manifest.broker_ids)
            keyring = manifest.keyring(identity_of(signer, manifest.cell))
            context = FaultContext(signer, manifest, keyring, self._rng)
            altered = Altering(context).of(document)
            if _convinces(altered, manifest) and not _holds(altered, manifest):
                facts.violate(self.name, f"a forged {type(altered).__name__.lower()} is believed")


def _convinces(document: Receipt | Evidence, manifest: Manifest) -> bool:
    court = manifest.court()
    if isinstance(document, Evidence):
        return court.why_evidence_fails(document) is None
    channel = manifest.channel(document.stream.channel)
    if channel is None:
        return False
    votes = receipt_votes(manifest.quorums, channel.policy.protection)
    return court.why_receipt_fails(document, votes) is None


def _holds(document: Receipt | Evidence, manifest: Manifest) -> bool:
    """Whether a document is valid without the one statement that may have been altered.

    Statements of another epoch count, if the same key signed them.
    """
    if isinstance(document, Receipt):
        return any(
            flaw_of_receipt(replace(document, statements=some), manifest, any_epoch=True) is None
            for some in _without_any(document.statements)
        )
    return any(
        flaw_of(replace(document, witnesses=some), manifest, any_epoch=True) is None
        for some in _without_any(document.witnesses)
    )


def _without_any(statements: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """All statements, then all but each one in turn."""
    yield statements
    for place in range(len(statements)):
        yield (*statements[:place], *statements[place + 1 :])
