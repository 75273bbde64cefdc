"""The stored form of operations: channels hold them, so their bytes never change."""

from __future__ import annotations

import pytest

from quorumcast.named.operations import (
    AckPositions,
    AnyOperation,
    Assignment,
    ClaimPositions,
    CloseSession,
    CompanionEntry,
    Configure,
    ConsumerSession,
    Create,
    ExpireSession,
    Heartbeat,
    MarkDead,
    NackPositions,
    OpenSession,
    SkipTo,
    StateSnapshot,
    SubscriptionSettings,
    WriteSnapshot,
    decode,
    encode,
)

SETTINGS = SubscriptionSettings(3, 1000, "d")
SNAPSHOT = StateSnapshot(
    root=1,
    epoch=2,
    allowed=("bob",),
    settings=SETTINGS,
    next=9,
    sessions=(ConsumerSession("bob", 7, 4),),
    assigned=(Assignment(5, "bob", 1),),
    returned=((6, 2),),
    dead=(3,),
    dead_count=1,
    redelivered=4,
)
HEADER = b"\x94\x01\xc3\xa1g"  # version 1, shared, "g"
STORED: list[tuple[AnyOperation, bytes]] = [
    (Create(0, 5, SETTINGS, b"c"), b"\x95\xa6Create\x00\x05\x93\x03\xcd\x03\xe8\xa1d\xc4\x01c"),
    (Configure(SETTINGS, b"c"), b"\x93\xa9Configure\x93\x03\xcd\x03\xe8\xa1d\xc4\x01c"),
    (OpenSession(7), b"\x92\xa4Join\x07"),
    (ClaimPositions(7, 3, 9), b"\x94\xa5Claim\x07\x03\t"),
    (AckPositions(7, ((1, 2),)), b"\x93\xa3Ack\x07\x91\x92\x01\x02"),
    (NackPositions(7, ((3, 3),)), b"\x93\xa4Nack\x07\x91\x92\x03\x03"),
    (Heartbeat(7), b"\x92\xa4Beat\x07"),
    (CloseSession(7, ((4, 4),)), b"\x93\xa5Leave\x07\x91\x92\x04\x04"),
    (ExpireSession("bob", 7, 4), b"\x94\xa7Release\xa3bob\x07\x04"),
    (MarkDead(7, 5), b"\x93\xa4Dead\x07\x05"),
    (SkipTo(7, 8), b"\x93\xa4Skip\x07\x08"),
    (
        WriteSnapshot(4, SNAPSHOT),
        b"\x93\xa8Snapshot\x04\x9b\x01\x02\x91\xa3bob\x93\x03\xcd\x03\xe8\xa1d\t\x91\x93\xa3bob\x07"
        b"\x04\x91\x93\x05\xa3bob\x01\x91\x92\x06\x02\x91\x03\x01\x04",
    ),
]


@pytest.mark.parametrize(("operation", "stored"), STORED, ids=lambda one: type(one).__name__)
def test_operation_is_stored_as_in_the_first_version(
    operation: AnyOperation, stored: bytes
) -> None:
    assert encode(True, "g", operation) == HEADER + stored
    assert decode(HEADER + stored) == CompanionEntry(1, True, "g", operation)
