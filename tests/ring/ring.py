"""A token ring: the smallest complete system, which shows all that a system brings.

One token goes round; the node that has it enters, and passes it on with the next number until its
successor says that it has it. A node keeps on disk which number it took last, so a crash neither
loses nor doubles the token. A liar can keep it, but no two correct nodes enter with one number.
`python -m tests.ring.ring NAME DIRECTORY READY LIFELINE PORT…` is a node as a process.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from quorumcast.core import machine as m
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Millis, NodeId, Positive
from quorumcast.core.message import Message
from quorumcast.crypto.directory import Address, PublicKeys
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.mac import mac_factory
from quorumcast.crypto.session import Family
from quorumcast.faults.contract import FaultSetting, Later
from quorumcast.runtime.driver import Driver
from quorumcast.runtime.links.contract import Listener
from quorumcast.runtime.links.greeting import Greeter
from quorumcast.runtime.links.transport import Transport
from quorumcast.runtime.loop import run
from quorumcast.runtime.store.store import DiskStore
from quorumcast.sim.kernel.adversary import Adversary, FaultModel
from quorumcast.sim.kernel.judging import EffectChecker, Facts, Promise
from quorumcast.sim.kernel.known_bad import Patch, Variant
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import Act, Corruption, Plan
from quorumcast.sim.kernel.run import Run
from quorumcast.sim.kernel.world import World
from quorumcast.sim.systems import System

RETRY_MS, HOLD_MS, HARMS = 40, 5, ("none", "crash", "double")


class Token(Message, frozen=True, array_like=True):
    """You may enter with this number."""

    number: Positive


class Got(Message, frozen=True, array_like=True):
    """I have the token with this number."""

    number: Positive


FAMILY = Family("ring", Token, Got)


class Entered(m.Effect, frozen=True):
    """The node of this machine has the token."""

    number: int


class Took(m.Record, frozen=True, tag=True):
    """The last number that a node took, and whether its successor has the next one."""

    number: int
    passed: bool


class Retry(m.Timer, frozen=True, tag=True):
    """Pass the token on, or do it again."""


class RingNode:
    """One node of the ring."""

    def __init__(self, me: NodeId, ring: Sequence[NodeId]) -> None:
        place = list(ring).index(me)
        self._before, self._after = ring[place - 1], ring[(place + 1) % len(ring)]
        #: The last number taken; the first node begins with the token.
        self._number = 0
        self._passed = place != 0

    def handle(self, event: m.Event, now: Millis) -> list[m.Effect]:
        match event:
            case m.Connected(peer=peer) if peer == self._after and not self._number:
                return [] if self._passed else self._take(1)
            case m.Receive(sender=sender, message=Token(number=number)):
                return self._on_token(sender, number)
            case m.Receive(sender=sender, message=Got(number=number)):
                return self._on_got(sender, number)
            case m.TimerFired(timer=Retry()) if not self._passed:
                again = m.SetTimer(Retry(), RETRY_MS)
                return [m.Send((self._after,), Token(self._number + 1)), again]
            case m.Restored(record=Took(number=number, passed=passed)):
                self._number, self._passed = number, passed
                return [m.SetTimer(Retry(), RETRY_MS)]
            case _:
                return []

    def _on_token(self, sender: NodeId, number: int) -> list[m.Effect]:
        if not self._may_pass(sender):
            return [m.Drop(m.DropReason.WRONG_SENDER, sender)]
        got = m.Send((sender,), Got(number))
        if number <= self._number:
            return [got, m.Drop(m.DropReason.DUPLICATE, sender)]
        return self._take(number, got)

    def _on_got(self, sender: NodeId, number: int) -> list[m.Effect]:
        if sender != self._after or number != self._number + 1:
            return [m.Drop(m.DropReason.OUT_OF_TURN, sender)]
        self._passed = True
        return [m.CancelTimer(Retry()), m.Persist(Took(self._number, True))]

    def _may_pass(self, sender: NodeId) -> bool:
        return sender == self._before

    def _take(self, number: int, *then: m.Effect) -> list[m.Effect]:
        self._number, self._passed = number, False
        hold = m.SetTimer(Retry(), HOLD_MS)
        return [m.Persist(Took(number, False), (*then, Entered(number), hold))]

    def sizes(self) -> dict[str, int]:
        return {}


class Doubling:
    """A fault: gives the token to somebody else as well, neither itself nor its successor."""

    name = "double"

    def __init__(self, names: Sequence[NodeId], setting: FaultSetting) -> None:
        place = names.index(setting.node) + setting.rng.randrange(2, len(names))
        self._victim = names[place % len(names)]

    def tamper(self, effects: list[m.Effect], now: Millis) -> list[m.Effect | Later]:
        said = [effect.message for effect in effects if isinstance(effect, m.Send)]
        return [*effects, *(m.Send((self._victim,), it) for it in said if isinstance(it, Token))]


class Ring:
    """The directory: every node keeps links to all others."""

    title, instance, epoch = "list of nodes", "ring", 1

    def __init__(self, count: int, ports: Sequence[int] = ()) -> None:
        self.names = tuple(NodeId(f"node-{n}") for n in range(count))
        self.identities = [Identity(n, hashlib.sha256(n.encode()).digest()) for n in self.names]
        self.keys = {n.name: PublicKeys(n.verify_key, n.exchange_key) for n in self.identities}
        self._ports = dict(zip(self.names, ports, strict=False))

    def address(self, node: NodeId) -> Address | None:
        return Address("127.0.0.1", self._ports[node]) if node in self._ports else None

    def calls(self, node: NodeId) -> Sequence[NodeId]:
        return self.names[self.names.index(node) + 1 :]

    def is_broker(self, node: NodeId) -> bool:
        return True

    def keyrings(self) -> dict[NodeId, Keyring]:
        mac = mac_factory("blake2b")
        return {one.name: Keyring(one, self, mac) for one in self.identities}


class RingPlan(Plan, frozen=True, kw_only=True):
    """One run of a ring."""

    system: str = "tests.ring.ring:SYSTEM"
    nodes: int

    def parameters(self) -> dict[str, int]:
        return {"nodes": self.nodes}


class RingFacts(Facts):
    """Who has entered, by number."""

    effects = Facts.effects | {Entered}

    def __init__(self, handle: Adversary) -> None:
        super().__init__(handle)
        self.entered: dict[int, NodeId] = {}

    def record(self, node: NodeId, effect: m.Effect) -> None:
        super().record(node, effect)
        if isinstance(effect, Entered):
            self.entered[effect.number] = node
            self.progress = len(self.entered)

    def deliveries(self) -> int:
        return len(self.entered)


class OneHolder(EffectChecker):
    """No number lets correct nodes enter twice."""

    name = "One holder"
    watches = frozenset((Entered,))

    def on_effect(self, facts: RingFacts, node: NodeId, effect: m.Effect) -> None:
        if isinstance(effect, Entered) and effect.number in facts.entered:
            other = facts.entered[effect.number]
            facts.violate(self.name, f"{node} enters with {effect.number}, as did {other}")


class Turns:
    """Every node enters again and again; promised where nobody lies."""

    name = "Turns"

    def __init__(self, names: Sequence[NodeId]) -> None:
        self._names = names

    def pending(self, facts: RingFacts) -> str | None:
        turns = Counter(facts.entered.values())
        return next((f"{name} waits" for name in self._names if turns[name] < 5), None)


class RingRun(Run[RingPlan, World[RingFacts]]):
    """A ring in the simulator."""

    def __init__(self, planned: RingPlan) -> None:
        self.ring, weather = Ring(planned.nodes), planned.weather
        place = World[RingFacts](planned.seed, self.ring.keyrings(), FAMILY, weather)
        model = FaultModel(planned.nodes - 2, {"double": partial(Doubling, self.ring.names)})
        handle = Adversary(model, place.scheduler, place.network, place.nodes)
        place.judge(RingFacts(handle), [OneHolder()])
        super().__init__(planned, place, bounds={})

    def add_nodes(self) -> None:
        for name in reversed(self.ring.names):
            self.world.add(name, partial(RingNode, name, self.ring.names), self.ring.calls(name))

    def promises(self) -> list[Promise[Any]]:
        return [] if self.plan.corruptions else [Turns(self.ring.names)]


def draw(seed: int, policy: str | None = None, harm: str | None = None) -> RingPlan:
    if policy is not None or harm not in (None, *HARMS):
        raise UsageError(f"a ring has no policies, and these adversaries: {', '.join(HARMS)}")
    harm = harm or random.Random(f"harm {seed}").choice(HARMS)
    rng = random.Random(f"ring {seed}")
    nodes = rng.randrange(4, 8)
    name, at_ms = rng.choice(Ring(nodes).names), rng.randrange(20, 300)
    return RingPlan(
        seed=seed,
        nodes=nodes,
        weather=Weather(jitter_ms=rng.choice((0, 5, 20)), loss=rng.choice((0, 50, 150))),
        acts=(Act(at_ms, "crash", name), Act(at_ms + 60, "restart", name)) * (harm == "crash"),
        corruptions=(Corruption(name, "double"),) if harm == "double" else (),
        adversary=harm,
    )


ANY_SENDER = Variant(
    name="any-sender",
    mistake="A node takes the token from anybody.",
    patches=(Patch(RingNode, "_may_pass", lambda self, sender: True),),
    attack=lambda seed: draw(seed, None, "double"),
    caught_by=("One holder",),
)

SYSTEM = System(plan=RingPlan, draw=draw, run=RingRun, variants=lambda: [ANY_SENDER])


async def serve(me: NodeId, directory: Path, ready: int, lifeline: int, ports: list[int]) -> None:
    """A node as a process, until the lifeline ends; it prints the numbers with which it enters."""
    ring, ears = Ring(len(ports), ports), SimpleNamespace()
    transport = Transport(ring, Greeter(ring.keyrings()[me], FAMILY), cast(Listener, ears))
    driver = Driver(
        RingNode(me, ring.names),
        transport,
        application={Entered: lambda entered: print(entered.number, flush=True)},
        store=DiskStore(directory / f"{me}.store", (Took,)),
    )
    for name in ("receive", "peer_up", "peer_down", "unreachable"):
        setattr(ears, name, getattr(driver, name))
    driver.restore()
    await transport.listen("127.0.0.1", ports[ring.names.index(me)])
    transport.call_peers()
    os.write(ready, b"up")
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(lifeline, ended.set)
    await ended.wait()


def main() -> None:
    name, directory, *numbers = sys.argv[1:]
    ready, lifeline, *ports = map(int, numbers)
    run(serve(NodeId(name), Path(directory), ready, lifeline, ports))
