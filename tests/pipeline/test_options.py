"""The options of the source: what they mean, and the sentence for each that means nothing."""

from pathlib import Path

import pytest

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.manifest.files import sign_manifest, write_identity, write_manifest
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.pipeline.streams.options import Offsets, Tamper, source_options
from quorumcast.testing.cells import CellSetup

COLUMNS = (("id", "int64"), ("name", "string"))


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    """The files of a cell that nobody runs."""
    total = Policy.named("total")
    plan = CellSetup(
        clients=("spark",),
        channels={
            "orders": ChannelEntry(Channel("orders"), total, schema=COLUMNS),
            "plant/1": "total",
            "plant/2": "total-crash",
            "loose": "ab+history",
        },
    )
    write_manifest(tmp_path / "manifest.json", sign_manifest(plan.manifest, plan.operator))
    write_identity(tmp_path / "spark.identity", plan.identities["spark"])  # type: ignore[index]
    return tmp_path


def options(cell: Path, **said: str) -> dict[str, str]:
    """As Spark hands them over: texts by names in lower case."""
    given = {"manifest": str(cell), "identity": "spark", **said}
    return {name.lower(): value for name, value in given.items()}


def test_options_left_out_have_their_defaults(cell: Path) -> None:
    found, entries = source_options(options(cell, channel="orders"), parallelism=4)
    assert found.channels == ("orders",)
    assert [entry.name for entry in entries] == ["orders"]
    assert found.starting == Offsets("earliest")
    assert (found.fail_on_data_loss, found.tamper, found.receipts) == (True, Tamper.WARN, False)
    assert found.access.manifest == str(cell / "manifest.json")
    assert found.access.identity == str(cell / "spark.identity")
    assert found.access.seats == tuple(range(1, 9))
    assert found.partitions == 4


def test_options_say_everything(cell: Path) -> None:
    said = options(
        cell,
        pattern="plant/*",
        startingOffsets='{"plant/2": 7, "plant/1": 3}',
        maxEventsPerTrigger="1000",
        maxBytesPerTrigger="2000",
        failOnDataLoss="FALSE",
        failOnTamper="quarantine",
        receipts="true",
        seats="3,5-7",
        partitions="2",
        timeout="1.5",
    )
    found, _ = source_options(said)
    assert found.channels == ("plant/1", "plant/2")
    assert found.starting == Offsets(positions=(("plant/1", 3), ("plant/2", 7)))
    assert (found.max_events, found.max_bytes, found.partitions) == (1000, 2000, 2)
    assert (found.fail_on_data_loss, found.tamper) == (False, Tamper.QUARANTINE)
    assert (found.access.seats, found.access.timeout_s) == ((3, 5, 6, 7), 1.5)


def test_options_ranges_side_by_side_are_no_more_than_seats(cell: Path) -> None:
    found, _ = source_options(options(cell, channel="orders", seats="1-3"), parallelism=64)
    assert found.partitions == 2


def test_options_time_to_start_from_knows_its_zone(cell: Path) -> None:
    said = options(cell, channel="orders", startingOffsets="1970-01-01T01:00:01+01:00")
    assert source_options(said)[0].starting == Offsets(since_us=1_000_000)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"maxEventPerTrigger": "5"}, "no option 'maxeventpertrigger': did you mean 'maxEvents"),
        ({"subscribe": "x"}, "no option 'subscribe'"),
        ({"startingOffsets": "first"}, "give earliest, latest, positions"),
        ({"startingOffsets": '{"orders": 0}'}, "positions of 1 or more by channel"),
        ({"startingOffsets": '{"orders": true}'}, "positions of 1 or more by channel"),
        ({"startingOffsets": '{"order": 3}'}, "names the channel 'order', which is not read"),
        ({"startingOffsets": "2026-11-01T12:00:00"}, "such as 2026-11-01T12:00:00Z"),
        ({"startingOffsets": "2026-11-01"}, "such as 2026-11-01T00:00:00Z"),
        (
            {"startingOffsets": '{"orders": 9}', "endingOffsets": '{"orders": 3}'},
            "says 9 for 'orders' and 'endingOffsets' 3, which is before that",
        ),
        ({"endingOffsets": "earliest"}, "'endingOffsets' is 'earliest': give latest"),
        ({"maxEventsPerTrigger": "0"}, "'maxEventsPerTrigger' is '0': give a whole number"),
        ({"failOnDataLoss": "no"}, "'failOnDataLoss' is 'no': give true or false"),
        ({"failOnTamper": "ignore"}, "choose one of fail, quarantine, warn"),
        ({"seats": "0-3"}, "'seats' is '0-3': give seats from 1 to 64"),
        ({"seats": "1-99999999999999"}, "'seats' is '1-99999999999999': give seats from 1 to 64"),
        ({"seats": "4-1"}, "'seats' is '4-1': give seats from 1 to 64"),
        ({"seats": "1-"}, "'seats' is '1-': give seats from 1 to 64"),
        ({"maxBytesPerTrigger": "9" * 5000}, "'maxBytesPerTrigger' is '9+…': give a whole number"),
        ({"maxEventsPerTrigger": str(2**63)}, "at most 9,223,372,036,854,775,807"),
        ({"startingOffsets": '{"orders":' * 20_000}, "positions of 1 or more by channel"),
        ({"seats": "2"}, "names one seat, and a source needs two"),
        ({"timeout": "soon"}, "'timeout' is 'soon': give seconds"),
        ({"channels": "a,,b"}, "'channels' is 'a,,b': give names between commas"),
        ({"channel": "nowhere"}, "no channel 'nowhere'"),
        ({"channel": ""}, "'channel' is empty"),
        ({"channel": "plant/*"}, "give it as the option 'pattern'"),
        ({"channel": "loose"}, "has no total order: read a channel with one of the policies"),
        ({"pattern": "plant/*"}, "with one of the options 'channel', 'channels' and 'pattern'"),
        ({"channels": "plant/1"}, "with one of the options 'channel', 'channels' and 'pattern'"),
        ({"identity": "nobody"}, "no identity 'nobody'"),
    ],
)
def test_options_that_mean_nothing_are_refused_by_name(
    cell: Path, said: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        source_options(options(cell, **{"channel": "orders", **said}))


def test_options_channels_with_other_columns_are_for_other_queries(cell: Path) -> None:
    with pytest.raises(UsageError, match="'orders' and 'plant/1' have different columns"):
        source_options(options(cell, channels="orders, plant/1"))


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("manifest", "option 'manifest' is missing"),
        ("identity", "option 'identity' is missing.*its clients are: spark"),
    ],
)
def test_options_that_are_needed_are_asked_for(cell: Path, missing: str, sentence: str) -> None:
    said = options(cell, channel="orders")
    del said[missing]
    with pytest.raises(UsageError, match=sentence):
        source_options(said)


def test_options_say_nothing_of_one_channel_of_several(cell: Path) -> None:
    said = options(cell, channels="plant/1,plant/2", startingOffsets='{"plant/1": 3}')
    with pytest.raises(UsageError, match="'startingOffsets' says nothing of 'plant/2'"):
        source_options(said)
