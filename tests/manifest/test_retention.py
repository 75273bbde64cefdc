"""How much a channel keeps, as users write and read it."""

import msgspec
import pytest

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.core.limits import EVERYTHING, FOREVER_MS, Limits
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.retention import retention_of, retention_sentence, with_retention

DURABLE = Policy.parse("total+durable")
IN_MEMORY = Policy.parse("ab")


def with_limits(policy: Policy, *given: str) -> Policy:
    return msgspec.structs.replace(policy, limits=with_retention(policy, given))


def kept(*given: str, policy: Policy = DURABLE) -> tuple[int, int, int]:
    limits = with_retention(policy, given)
    return limits.retained_ms, limits.retained_bytes, limits.retained_publications


@pytest.mark.parametrize(
    ("text", "age", "size", "count"),
    [
        ("7d", 7 * 86_400_000, EVERYTHING, EVERYTHING),
        ("2w", 14 * 86_400_000, EVERYTHING, EVERYTHING),
        ("1.5 hours", 5_400_000, EVERYTHING, EVERYTHING),
        ("30m", 1_800_000, EVERYTHING, EVERYTHING),
        ("90s", 90_000, EVERYTHING, EVERYTHING),
        ("99999w", FOREVER_MS, EVERYTHING, EVERYTHING),
        ("1GB", FOREVER_MS, 10**9, EVERYTHING),
        ("64 MiB", FOREVER_MS, 64 << 20, EVERYTHING),
        ("500mb", FOREVER_MS, 500 * 10**6, EVERYTHING),
        ("100000", FOREVER_MS, EVERYTHING, 100_000),
        ("4,096 publications", FOREVER_MS, EVERYTHING, 4096),
        ("everything", FOREVER_MS, EVERYTHING, EVERYTHING),
    ],
)
def test_retention_is_an_age_a_size_a_count_or_everything(
    text: str, age: int, size: int, count: int
) -> None:
    assert kept(text) == (age, size, count)


def test_retention_given_anew_replaces_all_three_limits() -> None:
    before = Policy.named(
        "total",
        journal=True,
        limits=Limits(retained_publications=5000, retained_bytes=6000, retained_ms=7000),
    )
    assert kept("7d", "1GB", policy=before) == (7 * 86_400_000, 10**9, EVERYTHING)
    assert with_retention(before, ()) == before.limits


@pytest.mark.parametrize(
    ("given", "age", "size", "count"),
    [
        ("1GB", FOREVER_MS, 10**9, 3_906_250),
        ("7d", 7 * 86_400_000, 64 << 20, 262_144),
        ("100000", FOREVER_MS, 64 << 20, 100_000),
        ("100KB", FOREVER_MS, 100_000, 4096),
    ],
)
def test_retention_in_memory_always_has_a_size_and_a_count(
    given: str, age: int, size: int, count: int
) -> None:
    assert kept(given, policy=IN_MEMORY) == (age, size, count)


@pytest.mark.parametrize("policy", [DURABLE, IN_MEMORY])
def test_retention_of_too_few_publications_says_what_to_write(policy: Policy) -> None:
    with pytest.raises(UsageError) as error:
        with_retention(policy, ["500"])
    assert str(error.value) == (
        "--retain 500 means 500 publications, and brokers need at least 1024 of this channel to "
        "work; write --retain 1024 or more, or a unit behind the number for an age or a size, such "
        "as 500m, 500d or 500MB"
    )
    with_limits(policy, "1024").check()


def test_retention_by_size_in_memory_counts_what_brokers_need() -> None:
    wide = msgspec.structs.replace(IN_MEMORY, limits=Limits(window=8192))
    with_limits(wide, "10KB").check()
    assert kept("10KB", policy=wide) == (FOREVER_MS, 10_000, 8192)


def test_retention_of_everything_in_memory_is_refused() -> None:
    with pytest.raises(UsageError, match=r"kept in the memory of brokers.*such as --retain 1GB"):
        with_retention(IN_MEMORY, ["everything"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "much",
        "7 moons",
        "-3",
        "0",
        "0d",
        "1.5",
        "0.2 bytes",
        "d7",
        "1e9",
        "٧d",
        "1,5GB",
        "9" * 400,
    ],
)
def test_retention_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--retain takes an age such as 7d .* not "):
        with_retention(DURABLE, [text])


@pytest.mark.parametrize("given", [("7d", "3h"), ("1GB", "everything"), ("everything", "7d")])
def test_retention_given_twice_is_refused(given: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="says again what another one says"):
        with_retention(DURABLE, given)


def test_retention_by_an_age_too_short_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--retain 0.5s is too short for what is under way"):
        with_retention(DURABLE, ["0.5s"])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("everything", "everything"),
        ("7d", "7 days"),
        ("1h", "1 hour"),
        ("90s", "90 seconds"),
        ("1.5s", "1.5 seconds"),
        ("1GB", "1 GB"),
        ("1.5GB", "1,500 MB"),
        ("64MiB", "64 MiB"),
        ("1 publication", "1 publication"),
        ("1234567 bytes", "1,234,567 bytes"),
    ],
)
def test_retention_is_shown_so_that_it_can_be_given_back(given: str, text: str) -> None:
    one_at_a_time = Limits(window=1, segment=1)  # so that one publication is enough to work
    policy = msgspec.structs.replace(DURABLE, limits=one_at_a_time)
    limits = with_retention(policy, [given])
    assert retention_of(limits) == text
    assert with_retention(policy, [text]) == limits


def test_retention_by_default_names_both_limits() -> None:
    assert retention_of(IN_MEMORY.limits) == "4,096 publications, 64 MiB"


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (
            with_limits(DURABLE, "4096"),
            "channel trades keeps 4,096 publications, and may have kept less before; to keep more "
            "from now on: quorumcast channel change trades --retain everything",
        ),
        (
            with_limits(IN_MEMORY, "3GB", "9000"),
            "channel trades keeps 9,000 publications, 3 GB per publisher, and may have kept less "
            "before; to keep more from now on: quorumcast channel change trades --retain 6GB",
        ),
        (
            DURABLE,
            "channel trades keeps everything, and may have kept less before; if it never did, too "
            "few brokers hold them: see 'quorumcast doctor'",
        ),
    ],
)
def test_retention_blames_no_present_limit_and_says_how_to_raise_it(
    policy: Policy, told: str
) -> None:
    entry = ChannelEntry(Channel("trades"), policy)
    assert retention_sentence(entry) == told
    *_, last = told.split()
    if "--retain" in told:
        assert with_retention(policy, [last]) != policy.limits


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (
            DURABLE,
            "keeps everything, and may have kept less before or been deleted and created anew; if "
            "neither, too few brokers hold them: see 'quorumcast doctor'",
        ),
        (
            with_limits(DURABLE, "4096"),
            "and may have kept less before or been deleted and created anew; to keep more",
        ),
        (IN_MEMORY, "and may have kept less before; to keep more"),  # it has no positions
    ],
)
def test_retention_of_a_channel_that_may_have_been_created_again_names_the_deleted_one(
    policy: Policy, told: str
) -> None:
    assert told in retention_sentence(ChannelEntry(Channel("trades"), policy, since=3))
