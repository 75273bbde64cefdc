"""Changes of members that take several epochs, checked before the first one is written.

An epoch changes one broker, or f by one (ADR 0017), so a larger change is a plan: first the brokers
that come, one after the other, then f, then the brokers that go. In this order a cell has enough
brokers for its f in every epoch. A plan that a running cell could not finish is refused while
nothing has changed yet.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quorumcast.cli.cell.advancing import Change
from quorumcast.cli.cell.running import supervisor_of
from quorumcast.cli.common import IDENTITY, OPERATOR, Rows
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.crypto.identity import Identity
    from quorumcast.manifest.manifest import BrokerEntry, Manifest

#: How long a new broker's address may take to answer or to refuse.
CONNECT_S = 3.0


def certificate_like(identity: Identity, like: BrokerEntry) -> str:
    """A TLS certificate, if the cell uses TLS."""
    from quorumcast.runtime.links.tls import make_certificate

    return make_certificate(identity) if like.certificate else ""


class Newcomer:
    """A broker that is added: its identity, made unless there is one, and its address."""

    def __init__(self, path: Path, name: str, host: str, port: int) -> None:
        from quorumcast.core.ids import NodeId
        from quorumcast.crypto.identity import Identity
        from quorumcast.manifest.files import read_identity

        if name == OPERATOR:
            raise UsageError(f"no node can be called {OPERATOR!r}; choose another name")
        self.name = name
        self.host = host
        self.port = port
        self._file = path.parent / f"{name}{IDENTITY}"
        known = self._file.exists()
        self._identity = read_identity(self._file) if known else Identity.generate(NodeId(name))

    @classmethod
    def parse(cls, path: Path, spec: str) -> Newcomer:
        """A newcomer as NAME=HOST:PORT."""
        name, _, address = spec.partition("=")
        host, _, port = address.rpartition(":")
        if not (name and host and port.isdecimal()):
            raise UsageError(f"--add takes NAME=HOST:PORT, not {spec!r}")
        return cls(path, name, host.strip("[]"), int(port))

    @property
    def option(self) -> str:
        """The option of `members change` that adds it."""
        return f"--add {self.name}={self.host}:{self.port}"

    def joined(self, old: Manifest) -> Manifest:
        """The next epoch, with this broker."""
        from quorumcast.manifest import build

        identity = self._identity
        certificate = certificate_like(identity, old.brokers[0])
        return build.add_broker(
            old, identity.name, identity, self.host, self.port, certificate=certificate
        )

    def join(self, old: Manifest) -> Manifest:
        """The same, with its identity in a file."""
        from quorumcast.manifest.files import write_identity
        from quorumcast.manifest.successor import check_successor

        new = self.joined(old)
        check_successor(old, new)
        if not self._file.exists():
            write_identity(self._file, self._identity)
        return new

    def check_address(self) -> None:
        """Refuse an address at which it cannot be reached, or at which something else listens."""
        if "+" in self.host:
            return  # of another transport than TCP, which cannot be asked here
        address = f"{self.host}:{self.port}"
        otherwise = f"nothing was changed; check the address, or use 'members add {self.name}'"
        try:
            socket.create_connection((self.host, self.port), CONNECT_S).close()
        except ConnectionRefusedError:
            return  # the machine is there, and the port is free
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(
                f"{self.name} could not be reached at {address} ({reason}): {otherwise}"
            ) from None
        raise UsageError(f"something else listens at {address} already: {otherwise}")


class PlannedEpoch(msgspec.Struct, frozen=True):
    """One epoch of a plan."""

    #: What it does, as a clause.
    title: str
    #: The option of `members change` that does it.
    option: str
    change: Change
    #: The broker that comes, and the one that goes, if any.
    comes: str = ""
    goes: str = ""


class MembersPlan:
    """The epochs that lead from one set of members to another."""

    def __init__(
        self,
        present: Manifest,
        newcomers: Sequence[Newcomer],
        leaving: Sequence[str],
        f: int | None = None,
    ) -> None:
        self.newcomers = newcomers
        self.leaving = leaving
        self.steps = [
            *(
                PlannedEpoch(f"{n.name} is added", n.option, n.join, comes=n.name)
                for n in newcomers
            ),
            *(_to_f(step) for step in _between(present.f, present.f if f is None else f)),
            *(_without(name) for name in leaving),
        ]
        self._present = present

    def check(self, up: Rows) -> None:
        """Refuse a plan that a cell of which these brokers are up could not finish."""
        from quorumcast.manifest.successor import check_successor

        joined = {newcomer.name: newcomer.joined for newcomer in self.newcomers}
        manifest, alive = self._present, set(map(str, up))
        for step in self.steps:
            following = joined.get(step.comes, step.change)(manifest)
            check_successor(manifest, following)
            alive.discard(step.goes)
            self._check_quorum(step, following, alive, up)
            alive |= {step.comes} - {""}
            manifest = following
        for newcomer in self.newcomers:
            newcomer.check_address()

    def _check_quorum(
        self, step: PlannedEpoch, following: Manifest, alive: Collection[str], up: Rows
    ) -> None:
        """Refuse a step after which the cell would stand still.

        A broker that comes does not count before it runs, unless `quorumcast up` starts it.
        """
        needed = following.quorums.responders
        there = len(alive)
        if step.comes and any(supervisor_of(row["pid"]) for row in up.values() if "pid" in row):
            there += 1
        if there < needed:
            by_hand = f", or use 'members add {step.comes}' and start it at once"
            raise UsageError(
                f"nothing was changed: once {step.title}, {needed} of {len(following.brokers)} "
                f"brokers must be up, and {len(alive)} are; start the others first"
                + (by_hand if step.comes else "")
            )


def _between(present: int, wanted: int) -> list[int]:
    """The numbers after the present one up, or down, to the wanted one."""
    up = range(present + 1, wanted + 1)
    down = range(present - 1, wanted - 1, -1)
    return list(up or down)


def _to_f(f: int) -> PlannedEpoch:
    from quorumcast.manifest.build import next_epoch

    return PlannedEpoch(f"f is {f}", f"--f {f}", lambda old: next_epoch(old, f=f))


def _without(name: str) -> PlannedEpoch:
    return PlannedEpoch(f"{name} is removed", f"--remove {name}", removing(name), goes=name)


def removing(name: str) -> Change:
    """The change that removes a broker."""
    from quorumcast.core.ids import NodeId
    from quorumcast.manifest import build

    return lambda old: build.remove_broker(old, NodeId(name))
