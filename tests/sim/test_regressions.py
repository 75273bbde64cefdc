"""Plans that once found a bug in the machines, each with a line that says what it was.

They were drawn from seeds, or made small from such. A seed draws another plan whenever the draw
changes; a stored plan stays what it was.
"""

from pathlib import Path

import pytest

from quorumcast.cell.serving.served_streams import ServedStreams
from quorumcast.sim.campaign import replay_of
from quorumcast.sim.cell.known_bad.plans import (
    B2,
    B3,
    B4,
    B5,
    B6,
    PUB1,
    SUB2,
    fifo_plan,
    order_plan,
)
from quorumcast.sim.cell.run import CellRun
from quorumcast.sim.cell.scenario import ORDERS
from quorumcast.sim.kernel.plan import Act, Corruption
from quorumcast.sim.shrink import read_plan
from quorumcast.sim.systems import perform, run_scenario

pytestmark = pytest.mark.sim

PLANS = Path(__file__).parent / "plans"

FOUND = [
    # A broker that lost the publisher's SEND and became ready by others' echoes never echoed
    # itself; brokers that lost echoes as well waited for ever (Bracha's step 2 echoes there, too).
    "brb-equivocate-2",
    "brb-equivocate-36",
    # More than f brokers restarted with their journals; one peer alone knew what was settled, so
    # that the others waited for ever before they went on.
    "ab+history-none-11",
    # The publisher crashed when a run was acknowledged, by a liar as well: too few echoed it.
    "brb-false-positions-3200421",
    # A broker ended a stream, or gave up what was not settled of it, as soon as it heard of the
    # publisher's next life: runs that n-f brokers had acknowledged lacked its echo.
    "brb-equivocate-931000273",
    "brb-equivocate-931001414",
    "brb-bad-bodies-930000465",
    # Every new leader was bound to an offer that the first leader alone had and gave to nobody.
    "total-crash-withhold-offers-1025001254",
    # A subscriber of everything went on in an epoch with another column, and asked for some rows by
    # the old ones: no votes fitted.
    "brb-mangle-1025000821",
    # A subscriber handed evidence to the brokers once, over links that lost it and did not break.
    "ab+history-alter-991005363",
    # Of two runs of a lying publisher the one that won replaced, in the journal, the one that a
    # broker had echoed. After a restart the broker echoed both.
    "ab+history-retelling-931001112",
    # The acknowledgement that gave new credit was lost; the publisher had nothing it might repeat
    # and said nothing, so the broker had no reason to say it again.
    "ab+history-crash-37",
    "ab+history-crash-151",
    # Two liars and their neighbours in the chain took turns at standing aside, for ever.
    "chain+history-alter-body-201024",
    # A broker signed a part of what a history names before its record of the whole was on disk.
    "chain+history-alter-body-9500215",
    # A leader proposed before a broker that is far away had come, and two others crashed: that one
    # took no part in what had been proposed before it came, so that the log stood still.
    "total-crash-trespass-9100338",
    # A leader crashed with decisions that it alone had. The others knew how far it was, called
    # themselves late, and so never asked for another leader.
    "total-crash-partition-23000983",
    # A leader proposed a run behind the batch that ended the run's stream. All brokers dropped its
    # contents when they executed that batch, and waited for them before they voted, for ever.
    "total-crash-isolation-910001624",
    # Votes of a subscription that had just ended went beyond the part of an order that its
    # subscriber read next.
    "total-crash-several-9300393",
    # A reader of the past began with what one broker held that had just lost its memory, although
    # the other had not answered yet.
    "direct-crash-crash-recover-8100163",
    # A liar spoke of a stream that is to be ordered as if it were not: every broker then told its
    # publisher that nothing of it is known, and one that goes on after a crash gave up for good.
    "total-false-missed-9400119",
    # A run of an earlier life was acknowledged and about to be delivered when a later life had
    # displaced all that was retained of the earlier: brokers ended it, run and all.
    "brb-open-ahead-9401265",
    # One liar that claimed to be far ahead when the cell began kept everybody out of the first
    # instances for ever: each broker took it that it might have voted there in an earlier life.
    "total-wiped-20018",
    "total-false-standing-20010",
    "total-false-standing-20017",
    # After a blackout brokers held neither the log before their newest snapshot nor that state
    # to hand out: those that were behind could never catch up, and no leader could conclude.
    "total-blackout-30006",
    "total-blackout-30008",
    "total-blackout-30031",
    "total-crash-blackout-30037",
    # A restarted broker began its log where its journal had released it, and skipped positions.
    "total-blackout-17000949",
    # A broker that got back what it had lost found less room than it had asked for, since its
    # publisher had gone on meanwhile: it threw all of it away and said that it had caught up.
    "ab-rolling-3700025",
    # A broker echoed one history and settled another; its journal knew only the latter, so after a
    # restart it echoed that one as well.
    "ab+history-retelling-3700047",
    "ab-rolling-517",
    "ab+history-rolling-525",
    # The checker's own mistake: wrong contents that came before a subscription stood were looked
    # at by nobody, and blame was asked for.
    "total-alter-body-1000809",
    # Another: statements that a liar made up in the names of others were taken for its own.
    "ab-publisher-flood-3200547",
    # Another: wrong contents beyond the numbers that a subscriber counts votes for, likewise.
    "ab-alter-body-3600118",
    # Another: wrong contents of a stream that only the liar had named to the subscriber so far.
    "direct-alter-body-910000130",
    # Another: numbers that a liar's publications had before it published anything under them were
    # asked of a subscriber that came after they had been accepted.
    "brb-open-ahead-3700044",
    # Another: a broker to which a liar had told more of a later life had no room for an earlier.
    "ab-mangling-publisher-3700067",
    # Another: below a number that a lying publisher told brokers differently of, a new broker of a
    # bare fast path can get nothing back, for its ledger has no holes.
    "ab-members-29",
    # And another: what contradicts its journal a broker never takes, however many vouch for it.
    "ab-crash-recover-7000768",
    # The catalogue's mistake: a chain promises nothing while one of its brokers acknowledges what
    # it never held.
    "chain-false-positions-7100159",
    # The checker's: what proposals name is kept beyond a publisher's window, and was counted to it.
    "total-lie-to-subscribers-11001413",
    # Acknowledgements were lost on one lane: two new brokers began with a publication before the
    # first history that they got, on a chain nobody brought it to them, and the cell waited.
    "chain+history-members-5000786",
    # Runs were on their way once more when the chain was changed again: all brokers held them, each
    # by another chain, so no chain's last ones agreed.
    "chain-members-500080",
    "chain-members-6000103",
    "chain-members-6000323",
    # A broker was replaced before the one before it knew how histories had ended; one of the two
    # that did lied.
    "ab+history-members-20079",
    # Who had got back what it lacked asked for more only three seconds later, although the others
    # had gone on meanwhile; behind a publisher that lies to it, it fell further back every time.
    "ab-bad-bodies-14008411",
    # Contents ordered since the newest checkpoint were retained by nobody any longer, so the broker
    # that lacked them could neither execute them nor get a state.
    "total-twin-17000897",
    # With 2f+1 brokers one peer alone remembered what a restarted broker forgot, and another got it
    # a moment later; it called itself caught up at once, and the next one was restarted.
    "direct-rolling-30000987",
    "ab-members-94008755",
    # The scenario's mistake: without a log brokers keep no epoch, and start with the file. One that
    # went back to an epoch of which one broker was left was never led out of it.
    "direct-members-30000139",
    # A broker was away while the cell replaced another: of the brokers that it knew one was left,
    # whose statement alone it did not believe, although brokers only crash there.
    "direct-crash-members-991009808",
    # The operator's mistake: it looked at the broker that it had restarted last, and took away what
    # an earlier one had just found out that it lacked.
    "direct-rolling-30000509",
    # Who wanted everything from the oldest on believed one of two, which lied about what it holds.
    "direct-latecomers-93",
    # Who read the past asked for later histories than those that alone speak of what a chain did
    # not bring.
    "chain+history-latecomers-4",
    # A publisher that lies showed a broker a little now and then, which so asked nobody else.
    "ab-restarting-clients-250001616",
    "ab-bad-bodies-250001866",
    # The checker's mistake: wrong contents alone prove nothing, and evidence was asked for.
    "total-lie-in-ordering-250010985",
    # A subscriber began with publications that only a history before its first one names: one
    # broker had answered before there was any, another had the history and not what it names.
    "chain+history-drop-210009626",
    # A broker whose earlier life had let go of more than its peers took itself for one that lacks
    # everything, and called itself late for ever.
    "brb-retelling-18",
    # A broker held histories and lacked the readies of peers that had restarted since: they were
    # delivered by everybody else, and never here.
    "ab+history-censor-channel-2067",
    # The checker's mistake: retention counts over all lives of a publisher.
    "chain-drop-80139",
    # And these: positions of a deleted channel that no reader had taken were demanded of the one
    # that got its name; a publisher was restarted and went on with a channel that was deleted.
    "total-members-77000073",
    "total-members-77000016",
    # A broker that had missed a life had no room to get it back: it kept an older one instead.
    "direct-crash-several-80111",
    # A broker had got only a part of a life when later ones took its place, and a subscriber that
    # lacked the rest waited for it.
    "direct-crash-isolation-600002",
    # A broker did not know that a life had been there, or that it was over: it might have held all
    # of it, and so the subscriber waited.
    "direct-crash-lives-601110",
    "direct-crash-wire-510037",
    # A broker that had answered had not heard of the stream yet, and a liar claimed to hold nothing
    # of it: a subscriber that read from the oldest on gave up what two brokers held.
    "ab-false-positions-3100003",
    # Two had answered like that, and the liar claimed to hold nothing before a far number: a
    # subscriber that read from the oldest on began with what was published next.
    "ab+history-false-positions-88001073",
    # One peer never answered, and so the others were never asked again.
    "ab-silent-3200523",
    # A spare broker, which no chain reaches, counted among those that may still hold everything.
    "chain-reorder-50036",
    "chain-trespass-70241",
    # Limits were raised while one broker of a chain was behind, so it alone held what others had
    # dropped; the broker beside the chain held nothing and seemed about to.
    "chain-disconnect-1022001667",
    # Brokers that restarted left out the first run that they retain, for it was so only in part.
    "total-retelling-602049",
    # While a subscriber was cut off it had come to ask for one position at a time, every few
    # seconds, and went on so.
    "total-crash-crash-recover-602045",
    # Brokers that restarted did not get histories back from before they began, and a history that
    # too few could vote on was lost to whoever lacked what it names.
    "chain+history-retelling-117",
    "chain+history-retelling-135",
    "chain+history-isolation-602043",
    # A publisher had rewound to a broker that gave no credit: no history named what the whole chain
    # acknowledged a moment later.
    "chain+history-false-positions-605154",
    # Contents came last, so a run was echoed and delivered in one turn together with later runs.
    # Retention had removed it before the journal had it.
    "brb-lie-acks-23001249",
    # A broker that came late to a chain skipped the histories that its peers held, and so never got
    # the publications that they name. Every chain had this broker or the faulty one in it.
    "chain+history-twin-23001402",
    # All brokers had settled a history and restarted while its publisher was cut off. It sent the
    # history again, and no broker echoed what its journal said was settled.
    "chain+history-isolation-991009854",
    # A reader of the past ended before what brokers had acknowledged and not delivered yet.
    "brb-alter-970000183",
    # A subscriber began to wait for a silent broker only when another one had given up fetching
    # what it lacked: it was told of a gap after both waits, one after the other.
    "direct-crash-lives-991001180",
    # A publisher on a slow link was still sending a broker what its restarted peer had lost. After
    # two seconds the broker skipped it, and dropped what it alone held.
    "direct-crash-crash-recover-996003480",
    # A history was lost when two brokers restarted; two others held what it named, which no chain
    # brought again, and a subscriber that had been cut off waited for it.
    "chain+history-isolation-991009823",
]


@pytest.mark.parametrize("name", FOUND)
def test_plan_that_found_a_bug_stays_clean(name: str) -> None:
    path = PLANS / f"{name}.json"
    assert perform(read_plan(path)).violations == [], f"quorumcast sim --plan {path}"


def test_every_stored_plan_is_run() -> None:
    assert sorted(path.stem for path in PLANS.iterdir()) == sorted(FOUND)


def test_machine_that_raises_is_a_violation_with_a_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(ServedStreams, "positions", fail)
    outcome = run_scenario(1, "ab", "none")
    assert [violation.property for violation in outcome.violations] == ["Robustness"]
    assert "IndexError" in outcome.violations[0].detail
    assert "--start 1 " in replay_of(outcome)


def test_broker_that_comes_late_to_a_cell_with_one_dead_broker_takes_part_in_the_end() -> None:
    """It heard of an instance, took it that it might have voted in it, and all waited for it."""
    plan = order_plan(
        "total",
        acts=[
            Act(0, "partition", peers=(B4,)),
            Act(395, "stop", B2),
            Act(400, "submit", PUB1, ORDERS, 1),
            Act(900, "heal"),
        ],
        doomed=((B2, "crash"),),
    )
    assert perform(plan(0)).violations == []


def test_liar_that_votes_and_denies_all_checkpoints_does_not_make_logs_grow_without_end() -> None:
    """While a correct broker was away nothing became stable, and nothing was ever forgotten."""
    plan = order_plan(
        "total",
        Corruption(B3, "false-standing", 0, 100, ("root",)),
        acts=[
            Act(300, "partition", peers=(B4,)),
            *(Act(310 + 10 * n, "submit", PUB1, ORDERS, 1) for n in range(330)),
        ],
        calm_at_ms=4200,
    )
    assert perform(plan(0)).violations == []


@pytest.mark.parametrize("policy", ["chain+history", "ab+history"])
def test_reader_of_the_past_gets_what_brokers_have_by_histories_alone(policy: str) -> None:
    """It began with the next history; of what no chain had brought nobody voted again."""
    acts = [Act(340, "read", SUB2, ORDERS)]
    run = CellRun(fifo_plan(policy, Corruption(B2, "drop", 0, 100), acts=acts)(0))
    assert run.perform().violations == []
    reader = run.world.facts.reader(SUB2, ORDERS)
    assert reader is not None
    (accepted,) = reader.accepted.values()
    numbers = [number for number, _ in accepted]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 12


def test_brokers_beside_a_chain_whose_publisher_comes_back_in_the_middle_echo_as_well() -> None:
    """It no longer held what the chain had; they left it out, and lacked it for its history."""
    plan = fifo_plan(
        "chain+history",
        acts=[
            Act(60, "submit", PUB1, ORDERS, 300),
            *(Act(at, "cut", b, peers=(PUB1,)) for at in range(80, 340, 20) for b in (B5, B6)),
        ],
        brokers=6,
    )
    assert perform(plan(0)).violations == []
