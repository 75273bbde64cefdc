"""Replay of a workload of predicates: each subscription gets the rows that match, and no others.

All events go to one channel, in publications of `--batch` rows by the nodes that publish them. Each
subscription of the workload is one of its node's, with its own predicate; or, *joined*, a node has
one subscription for the rows that match any of its predicates. What each of them must get is
computed beforehand (`bench.predicates.workload`), so that every row that is lost, repeated, altered
or irrelevant is counted.

Two nodes more show what a predicate saves: `selective` wants about 9 % of the rows, `everything`
has no predicate. The bytes that they receive are compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from quorumcast.bench.plan import totals
from quorumcast.bench.predicates.workload import (
    EVERYTHING,
    SELECTIVE,
    ContentReader,
    ContentWorkload,
)
from quorumcast.bench.replay import (
    ReplayBed,
    Replayed,
    ReplayFigures,
    ReplayPlan,
    ReplayResult,
)
from quorumcast.bench.run import Progress
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.schema import ARROW_TYPES

CHANNEL = Channel("events")
#: Files of a run: a bit per reader and event, and how many rows are due of each event.
EXPECTED, OWED = "expected.npy", "owed.npy"
#: Events under way at most; and with one row per publication.
EVENT_WINDOW, SINGLE_WINDOW = 16_384, 512
_HEAD = (("event", "int64"), ("sent_ns", "uint64"), ("checksum", "uint64"))
_TYPE_NAMES = {kind: name for name, kind in ARROW_TYPES.items()}


class ContentShareResult(ReplayResult, kw_only=True):
    """What one process found."""

    #: Events that its nodes published, in so many publications, and the rows due for them.
    published: int = 0
    publications: int = 0
    owed: int = 0
    #: Rows that its subscriptions had to get, and got.
    accepted: int = 0
    #: Rows that do not match.
    irrelevant: int = 0
    #: Bytes that the nodes to compare have received.
    bytes_in: dict[str, int] = msgspec.field(default_factory=dict)


class SavedBytes(msgspec.Struct, frozen=True):
    """What a subscriber receives that has a predicate, beside one that has none."""

    where: str
    #: The share of rows that match.
    rows_share: float
    bytes: int
    bytes_of_everything: int
    #: The one beside the other.
    bytes_share: float | None


class ContentReport(ReplayFigures, kw_only=True):
    """What a replay of predicates measured: `expected` are rows that were due at subscriptions."""

    #: Predicates that the nodes have together, and how many subscriptions.
    predicates: int
    subscriptions: int
    joined: bool
    batch: int
    publications: int
    irrelevant: int
    saved: SavedBytes

    @property
    def wrong(self) -> int:
        return super().wrong + self.irrelevant


class ContentReplay:
    """The replay of a workload of predicates."""

    def __init__(self, plan: ReplayPlan, directory: Path, progress: Progress) -> None:
        self.plan = plan
        self._workload = ContentWorkload(Path(plan.workload), plan.events, plan.predicates)
        if not len(self._workload):
            raise UsageError(f"{plan.workload} has no events; generate it again")
        self._readers = self._workload.readers(joined=plan.joined)
        progress("computing what must arrive")
        #: How many rows are due of each event, and all rows that each reader must get.
        self._owed, self._by_reader = _expect(self._workload, self._readers, directory)
        self._check_counted()
        self._bed = ReplayBed(
            plan,
            directory,
            progress,
            clients=[*self._workload.nodes, SELECTIVE, EVERYTHING],
            channels={CHANNEL: channel_entry(self._workload, plan.policy())},
            arrow=True,
        )

    def run(self) -> ContentReport:
        """Replay, and report."""
        module = "quorumcast.bench.predicates.replayer"
        return self._report(self._bed.run(module, ContentShareResult, int(self._owed.sum())))

    def _check_counted(self) -> None:
        """Hold the matches to those that were counted when the workload was made."""
        counted, found = self._workload.counted, sum(self._by_reader[:-2])
        if not self.plan.joined and counted not in (None, found):
            raise UsageError(
                f"{self.plan.workload} has {counted:,} matches by its own count and {found:,} by "
                "its predicates: its files do not belong together; generate it again"
            )

    def _report(self, done: Replayed[ContentShareResult]) -> ContentReport:
        plan, results = self.plan, done.results
        readers = self._readers[:-2]
        added = totals(results, "published", "publications", "owed", "accepted", "irrelevant")
        owed, accepted = added["owed"], added["accepted"]
        return ContentReport(
            **done.figures(plan, published=added["published"], delivered=accepted),
            workload=self._workload.header.name,
            nodes=len({reader.node for reader in readers}),
            predicates=sum(len(reader.where) for reader in readers),
            subscriptions=len(readers),
            joined=plan.joined,
            batch=max(plan.cell.batch, 1),
            publications=added["publications"],
            expected=owed,
            lost=max(owed - accepted, 0),
            irrelevant=added["irrelevant"],
            saved=self._saved(results),
        )

    def _saved(self, results: Sequence[ContentShareResult]) -> SavedBytes:
        received = {name: size for result in results for name, size in result.bytes_in.items()}
        selective, everything = self._by_reader[-2:]
        part, whole = received.get(SELECTIVE, 0), received.get(EVERYTHING, 0)
        return SavedBytes(
            where=self._readers[-2].where[0],
            rows_share=round(selective / everything, 4),
            bytes=part,
            bytes_of_everything=whole,
            bytes_share=round(part / whole, 4) if whole else None,
        )


def channel_entry(workload: ContentWorkload, policy: Policy | None = None) -> ChannelEntry:
    """The channel of all events; `policy` matters only to its cell."""
    kinds = [(field.name, _TYPE_NAMES.get(field.type, "")) for field in workload.attributes.schema]
    for name, kind in kinds:
        if not kind or name in dict(_HEAD):
            raise UsageError(
                f"column {name!r} of {workload.path} cannot be a column of a channel; rename it, "
                "or give it another type"
            )
    return ChannelEntry(CHANNEL, policy or Policy.named("direct"), schema=(*_HEAD, *kinds))


def _expect(
    workload: ContentWorkload, readers: Sequence[ContentReader], directory: Path
) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Compute and write what must arrive: how many rows of each event, and at each reader."""
    owed = np.zeros(len(workload), np.int64)
    shape = (len(readers), -(-len(workload) // 8))
    bits = np.lib.format.open_memmap(directory / EXPECTED, "w+", np.uint8, shape)
    by_reader = []
    for number, wanted in enumerate(workload.expected(readers)):
        bits[number] = np.packbits(wanted, bitorder="little")
        owed += wanted
        by_reader.append(int(wanted.sum()))
    bits.flush()
    np.save(directory / OWED, owed)
    return owed, by_reader


def run_content_replay(plan: ReplayPlan, progress: Progress = lambda stage: None) -> ContentReport:
    """Replay a workload of predicates on this machine."""
    plan.check()
    policy = plan.cell.channel_policy()
    if policy.chained:
        raise UsageError(
            f"the policy {policy.name!r} has no predicates: on a chain brokers vote for whole "
            "publications only; choose another"
        )
    if plan.cell.trace:
        raise UsageError("--trace is for workloads of topics; leave it out")
    with tempfile.TemporaryDirectory(prefix="quorumcast-replay-") as directory:
        return ContentReplay(plan, Path(directory), progress).run()
