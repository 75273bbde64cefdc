"""The observer: what a node notices of its peers, from events and effects alone. n = 4, f = 1."""

from __future__ import annotations

import pytest
from tests.support.cells import B1, B2, B3, B4, BOB, LANE, ORDERS, STREAM, Cell, contents, digests, vote

from quorumcast.agents import observation
from quorumcast.agents.observation import COLUMNS, Observation, columns_of
from quorumcast.agents.observer import Observer
from quorumcast.agents.turnout import PATIENCE_MS, bucket_of
from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.core.machine import (
    Connected,
    Deliver,
    Drop,
    DropReason,
    Receive,
    Send,
    Suspect,
    Suspicion,
)
from quorumcast.core.messages import Ack, Positions, Propose, Publish, Ready, Subscribe, Vote, Write
from quorumcast.core.quorum import Protection
