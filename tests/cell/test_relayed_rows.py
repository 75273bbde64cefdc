"""Relayed channels that carry on some rows only: results are held, recovered and proven."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.cells import B1, B3, BOB, T0
from tests.support.rows import COLUMNS, NONSENSE, SCHEMA, prices_of, rows_body
from tests.support.tree_network import CellPlan, TreeNetwork, identity_in, manifest_of

from quorumcast.broadcast.application import Deliver, Prove, Recall, Refused, Select
from quorumcast.broadcast.messages import Contents, Matches
from quorumcast.cell.subscribing.uplink import Uplink
from quorumcast.core.cuts import looks_cut
from quorumcast.core.envelope import write_envelope
from quorumcast.core.machine import Connected, Receive, Send
from quorumcast.core.publication import batch_of_rows, decode_batch, encode_batch
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.schema import arrow_schema
from quorumcast.matching.cut import decode_cut

CHEAP = "price < 50"
TOP = CellPlan("top", Policy.named("ab"), n=4, schema=COLUMNS)
LEAF = CellPlan("leaf", Policy.named("relay"), parent="top", schema=COLUMNS, where=CHEAP)
BELOW = CellPlan(
    "below", Policy.named("relay"), parent="leaf", schema=COLUMNS, where=f"{CHEAP} AND price > 4"
)
TRAFFIC = ((60, 70), (5, 60, 70), (1, 2, 60), (80,), (40, 41, 90, 91), (3,))
#: Cheap rows; all if they are more than half.
CARRIED = [(2, [5]), (3, [1, 2, 60]), (5, [40, 41]), (6, [3])]


def tree(*plans: CellPlan) -> TreeNetwork:
    made = TreeNetwork(*plans)
    made["top"].publisher()
    made.run(100)
    return made


def publish(made: TreeNetwork, *runs: tuple[int, ...], for_ms: int = 400) -> None:
    made["top"].publish(*(rows_body(prices) for prices in runs))
    made.run(for_ms)


def read(made: TreeNetwork, cell: str, name: str = "bob") -> list[tuple[int, list[int]]]:
    """What a subscriber was told, as numbers and prices."""
    found: list[tuple[int, list[int]]] = []
    for told in made[cell].delivered.get(msgspec.convert(name, type(BOB)), ()):
        if told.cut:
            cut = decode_cut(told.body, SCHEMA, accepted=True)
            assert cut is not None
            prices = cut.batch.column("price").to_pylist()
        else:
            batch = decode_batch(memoryview(told.body)[16:], SCHEMA)
            assert batch is not None
            prices = batch.column("price").to_pylist()
        found.append((told.position or told.number, prices))
    return found


@pytest.mark.parametrize("policy", ["ab", "ab+history", "brb", "direct", "total"])
def test_reader_of_a_child_gets_the_rows_that_the_child_carries_on(policy: str) -> None:
    relay = Policy.named("relay-total" if policy == "total" else "relay")
    top = msgspec.structs.replace(TOP, policy=Policy.named(policy, alpha=2))
    made = tree(top, msgspec.structs.replace(LEAF, policy=relay))
    made["leaf"].subscribe()
    publish(made, *TRAFFIC, for_ms=1000)
    assert read(made, "leaf") == CARRIED
    assert not made["leaf"].gaps
    assert not made["leaf"].suspected


def test_reader_that_comes_late_gets_the_rows_that_the_child_holds() -> None:
    made = tree(TOP, LEAF)
    publish(made, *TRAFFIC, for_ms=800)
    made["leaf"].subscribe()
    made.run(500)
    assert read(made, "leaf") == CARRIED


def test_reader_with_a_predicate_gets_rows_of_those_that_the_child_carries_on() -> None:
    made = tree(TOP, LEAF)
    made["leaf"].subscribe("bob", 0, "price > 2", "price = 60")
    publish(made, *TRAFFIC, for_ms=800)
    # Whatever was carried on whole: 60 is not cheap, so nobody gets it as a row of its own.
    assert read(made, "leaf") == [(2, [5]), (5, [40, 41]), (6, [3])]
    made["leaf"].happen(BOB, Select(made["leaf"].plan.channel))
    publish(made, (1, 60, 70), (60,))
    assert read(made, "leaf")[-1] == (7, [1])


def test_reader_gets_the_rows_of_a_parent_that_has_another_column_already() -> None:
    wide = (*COLUMNS, ("size", "int64"))
    made = tree(msgspec.structs.replace(TOP, schema=wide), LEAF)
    made["leaf"].subscribe()
    made["leaf"].subscribe("alice", 0, "price = 5", "price = 60")
    for prices in TRAFFIC:
        rows = [{"name": "n", "price": price, "size": price} for price in prices]
        batch = batch_of_rows(rows, arrow_schema(wide))
        made["top"].publish(encode_batch(batch, write_envelope(1_000_000)))
    made.run(1000)
    assert read(made, "leaf") == CARRIED
    # Of number 3, which was carried on whole, the rows that are cheap and wanted: none.
    assert read(made, "leaf", "alice") == [(2, [5])]


def test_column_that_the_parent_got_while_brokers_were_behind_convicts_none_of_them() -> None:
    """One carried on rows without the column, the others with it, and all of them are correct."""
    wide = (*COLUMNS, ("size", "int64"))
    leaf = msgspec.structs.replace(LEAF, where="")
    made = tree(msgspec.structs.replace(TOP, schema=wide), leaf, BELOW)
    for late in ("b2", "b3"):
        made.detach("below", late)
    rows = [{"name": "n", "price": price, "size": price} for price in (5, 60, 70)]
    batch = batch_of_rows(rows, arrow_schema(wide))
    made["top"].publish(encode_batch(batch, write_envelope(1_000_000)))
    made.run(500)
    made.adopt(msgspec.structs.replace(leaf, schema=wide))
    for late in ("b2", "b3"):
        made.attach("below", late)
    made["below"].subscribe()
    made.run(3000)
    held = [made["below"].ledger(name).digests(1, 1) for name in ("b1", "b2", "b3")]
    assert len(set(held)) == 2
    (told,) = made["below"].delivered[BOB]
    made["below"].happen(BOB, Prove(*told.provable))
    made.run(2000)
    assert len(made["below"].proven) == 1
    assert not made["below"].accused


def test_uplink_gets_no_more_than_the_rows_that_are_carried_on() -> None:
    sizes = []
    for where in ("", CHEAP):
        made = tree(TOP, msgspec.structs.replace(LEAF, where=where))
        sent: list[Send] = []

        def note(node: str, reader: str, send: Send, sent: list[Send] = sent) -> bool:
            sent += [send] if reader.startswith("leaf-") else []
            return False

        made["top"].losses.append(note)
        publish(made, *([(1, *range(100, 200))] * 10))
        sizes.append(sum(len(body) for send in sent for body in send.bodies))
    assert sizes[1] < sizes[0] / 5


def test_cells_may_carry_on_ever_fewer_rows() -> None:
    made = tree(TOP, LEAF, BELOW)
    made["below"].subscribe()
    publish(made, *TRAFFIC, for_ms=1500)
    assert read(made, "below") == [(2, [5]), (5, [40, 41])]


def refusal(uplink: Uplink) -> str:
    """Why an uplink that has reached its parent does not ask where to go on."""
    (refused,) = uplink.handle(Connected(B1), T0)
    assert isinstance(refused, Refused)
    return refused.reason


def test_child_that_asks_for_rows_that_its_parent_lacks_is_refused() -> None:
    wider = msgspec.structs.replace(BELOW, where="price < 60")
    plans = (TOP, LEAF, wider)
    leaf, below = manifest_of(LEAF, plans), manifest_of(wider, plans)
    keyring = leaf.keyring(identity_in("leaf", "below-b1"))
    assert "has only those where price < 50" in refusal(Uplink(below, leaf, keyring))
    unknown = msgspec.structs.replace(LEAF, where="prize < 50")
    top, child = manifest_of(TOP, (TOP, unknown)), manifest_of(unknown, (TOP, unknown))
    made = Uplink(child, top, top.keyring(identity_in("top", "leaf-b1")))
    assert "what channel 'orders' carries on names the column" in refusal(made)


def test_child_leaves_a_parent_that_carries_on_fewer_rows_than_before() -> None:
    plans = (TOP, LEAF, BELOW)
    leaf, below = manifest_of(LEAF, plans), manifest_of(BELOW, plans)
    uplink = Uplink(below, leaf, leaf.keyring(identity_in("leaf", "below-b1")))
    narrow = manifest_of(msgspec.structs.replace(LEAF, where="price < 20"), plans)
    later = msgspec.structs.replace(narrow, epoch=leaf.epoch + 1)
    (refused,) = uplink.adopt(later, later.keyring(identity_in("leaf", "below-b1")))
    assert isinstance(refused, Refused)
    assert "has only those where price < 20" in refused.reason


def test_child_that_asks_for_rows_of_a_chain_is_refused() -> None:
    chain = msgspec.structs.replace(TOP, policy=Policy.named("chain"))
    top, leaf = manifest_of(chain, (chain, LEAF)), manifest_of(LEAF, (chain, LEAF))
    made = Uplink(leaf, top, top.keyring(identity_in("top", "leaf-b1")))
    assert "on a chain brokers vote for whole publications only" in refusal(made)


def test_recalled_positions_have_the_rows_that_the_child_carries_on() -> None:
    top = msgspec.structs.replace(TOP, policy=Policy.named("total"))
    made = tree(top, msgspec.structs.replace(LEAF, policy=Policy.named("relay-total")))
    made["leaf"].subscribe()
    publish(made, *TRAFFIC, for_ms=1000)
    accepted = list(made["leaf"].delivered[BOB])
    made["leaf"].happen(BOB, Recall(made["leaf"].plan.channel, 1, 6))
    made.run(1000)
    assert not made["leaf"].suspected
    found = {one.position: one.found for one in made["leaf"].recalled}
    assert sorted(found) == [1, 2, 3, 4, 5, 6]
    # At 1 and 4 nothing is carried on, and nothing is gone.
    assert [at for at, one in found.items() if one is None] == [1, 4]
    assert {one.oldest for one in made["leaf"].recalled} == {0}
    for told in accepted:
        again = found[told.position]
        assert again is not None
        assert (again.body, again.digest, again.cut) == (told.body, told.digest, told.cut)


def test_nonsense_of_a_publisher_is_carried_on() -> None:
    made = tree(TOP, LEAF)
    made["leaf"].subscribe()
    made["top"].publish(NONSENSE)
    made.run(400)
    (told,) = made["leaf"].delivered[BOB]
    assert (told.body, told.cut) == (NONSENSE, b"")


@pytest.mark.parametrize("fault", ["alter", "drop", "alter-body"])
def test_reader_misses_no_row_though_a_broker_of_each_cell_lies(fault: str) -> None:
    made = tree(TOP, LEAF)
    for cell in ("top", "leaf"):
        made[cell].corrupt("b3", fault)
    made["leaf"].subscribe()
    for prices in TRAFFIC:
        publish(made, prices)
    made.run(4000)
    assert read(made, "leaf") == CARRIED
    assert {suspect.node for _, suspect in made["leaf"].suspected} <= {"b3"}
    assert not made["leaf"].gaps


def test_wiped_broker_gets_results_back_from_its_own_cell() -> None:
    made = tree(TOP, LEAF)
    publish(made, *TRAFFIC, for_ms=800)
    before = made["leaf"].ledger("b1").digests(1, 6)
    made.stop("leaf", "b1")
    made["leaf"].start_broker("b1", wiped=True)  # without its uplink
    made.run(15_000)
    assert made["leaf"].ledger("b1").digests(1, 6) == before
    made["leaf"].subscribe()
    made.run(500)
    assert read(made, "leaf") == CARRIED


def test_restarted_broker_goes_on_where_it_was() -> None:
    made = tree(TOP, LEAF)
    made["leaf"].subscribe()
    publish(made, *TRAFFIC[:3])
    for broker in ("b1", "b2", "b3"):
        made.stop("leaf", broker)
        made.start("leaf", broker)
        made.run(12_000)
    publish(made, *TRAFFIC[3:], for_ms=3000)
    assert read(made, "leaf") == CARRIED
    assert not made["leaf"].gaps


@pytest.mark.parametrize("where", [(), ("price > 0",)])
@pytest.mark.parametrize("policy", ["ab", "total"])
def test_receipt_of_the_child_proves_the_rows_that_it_carries_on(
    policy: str, where: tuple[str, ...]
) -> None:
    relay = Policy.named("relay-total" if policy == "total" else "relay")
    top = msgspec.structs.replace(TOP, policy=Policy.named(policy))
    made = tree(top, msgspec.structs.replace(LEAF, policy=relay))
    made["leaf"].subscribe("bob", 0, *where)
    publish(made, (5, 60, 70), (1, 2, 60), for_ms=800)
    for told in made["leaf"].delivered[BOB]:
        assert isinstance(told, Deliver)
        made["leaf"].happen(BOB, Prove(*told.provable))
    made.run(2000)
    court = made["leaf"].manifest.court()
    cut, other = made["leaf"].proven
    assert [court.why_receipt_fails(receipt, 2) for receipt in (cut, other)] == [None, None]
    assert prices_of(cut.contents) == [5]
    assert not looks_cut(other.contents)
    forged = msgspec.structs.replace(cut, contents=cut.contents[:-1] + b"!")
    assert court.why_receipt_fails(forged, 2)


def test_receipt_comes_though_a_broker_sends_the_whole_publication() -> None:
    """The others hold, and sign for, the rows that the child carries on."""
    made = tree(TOP, LEAF)
    made["leaf"].subscribe("bob", 0, "price > 0")
    publish(made, (5, 60, 70), for_ms=800)
    (told,) = made["leaf"].delivered[BOB]
    made["leaf"].happen(BOB, Prove(*told.provable))
    whole = rows_body((5, 60, 70))
    answer = Contents(told.stream, 1, made["leaf"].manifest.hash(whole))
    made["leaf"].happen(BOB, Receive(B3, answer, (whole,)))
    made.run(2000)
    (receipt,) = made["leaf"].proven
    assert made["leaf"].manifest.court().why_receipt_fails(receipt, 2) is None
    assert prices_of(receipt.contents) == [5]


def test_votes_of_the_child_are_about_results() -> None:
    made = tree(TOP, LEAF)
    told: list[Matches] = []

    def note(node: str, reader: str, send: Send) -> bool:
        told.extend([send.message] if isinstance(send.message, Matches) else [])
        return False

    made["leaf"].losses.append(note)
    made["leaf"].subscribe()
    publish(made, *TRAFFIC)
    assert told
    assert len({said.where for said in told}) == 1
