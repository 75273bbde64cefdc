"""Every name has its policy, every policy its name, and nonsense is refused with a way out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAY_BE_ZERO, Limits
from quorumcast.core.quorum import Broadcast, Protection
from quorumcast.core.statements import Basis
from quorumcast.manifest.policy import POLICY_NAMES, Policy, parse_alpha

TABLE = [
    ("ab", Protection.BYZANTINE, Broadcast.AUTHENTICATED, 0, Basis.FORWARDED),
    ("ab+history", Protection.BYZANTINE, Broadcast.AUTHENTICATED, 100, Basis.SETTLED),
    ("brb", Protection.BYZANTINE, Broadcast.BRACHA, 0, Basis.SETTLED),
    ("chain", Protection.BYZANTINE, Broadcast.CHAIN, 0, Basis.FORWARDED),
    ("chain+history", Protection.BYZANTINE, Broadcast.CHAIN, 100, Basis.SETTLED),
    ("direct", Protection.TRUSTED, Broadcast.DIRECT, 0, Basis.SETTLED),
    ("direct-crash", Protection.CRASH, Broadcast.DIRECT, 0, Basis.FORWARDED),
    ("total", Protection.BYZANTINE, Broadcast.CONSENSUS, 0, Basis.SETTLED),
    ("total-crash", Protection.CRASH, Broadcast.CONSENSUS, 0, Basis.SETTLED),
]


def test_table_of_this_module_has_every_name() -> None:
    assert tuple(name for name, *_ in TABLE) == POLICY_NAMES


@pytest.mark.parametrize(("name", "protection", "broadcast", "alpha", "basis"), TABLE)
def test_policy_by_name_is_the_one_of_the_table(
    name: str, protection: Protection, broadcast: Broadcast, alpha: int, basis: Basis
) -> None:
    policy = Policy.named(name)
    alpha_max = 1024 if alpha else 0
    assert policy == Policy(
        protection=protection, broadcast=broadcast, alpha=alpha, alpha_max=alpha_max
    )
    assert (policy.name, policy.basis, policy.has_history) == (name, basis, alpha > 0)
    assert policy.adaptive == policy.has_history
    assert policy.total == (broadcast is Broadcast.CONSENSUS)


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_policy_encoded_decodes_to_itself(name: str) -> None:
    policy = Policy.named(name, journal=True, limits=Limits(window=200))
    assert msgspec.json.decode(msgspec.json.encode(policy), type=Policy) == policy


def test_policy_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        Policy.named("paxos")
    assert str(caught.value) == (
        "there is no policy 'paxos'; choose one of "
        "ab, ab+history, brb, chain, chain+history, direct, direct-crash, total, total-crash"
    )


def test_policy_that_names_no_alpha_keeps_within_what_brokers_retain() -> None:
    limits = Limits(window=200, retained_publications=300)
    policy = Policy.named("ab+history", limits=limits)
    assert (policy.alpha, policy.alpha_max) == (100, 150)


def test_policy_adaptive_has_the_larger_alpha_as_ceiling() -> None:
    policy = Policy.named("ab+history", alpha=10, alpha_max=500)
    assert policy.adaptive
    assert (policy.alpha, policy.alpha_ceiling) == (10, 500)
    assert Policy.named("ab+history", alpha=10).alpha_ceiling == 10
    assert not Policy.named("ab+history", alpha=10, alpha_max=10).adaptive


def test_policy_adapts_alpha_within_the_window_unless_one_is_named() -> None:
    assert Policy.named("ab+history").adaptive
    assert not Policy.named("ab+history", alpha=100).adaptive
    small = Policy.named("chain+history", limits=Limits(window=64))
    assert (small.alpha, small.alpha_ceiling) == (64, 64)


@pytest.mark.parametrize(
    ("text", "alpha"),
    [("", (None, 0)), ("100", (100, 0)), ("10-512", (10, 512)), ("1-1", (1, 1))],
)
def test_policy_alpha_is_parsed_as_people_write_it(text: str, alpha: tuple[int, int]) -> None:
    assert parse_alpha(text) == alpha


@pytest.mark.parametrize("text", ["many", "-", "10-", "-10", "1.5", "10-20-30", "-1", "1e3"])
def test_policy_alpha_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be a number, not"):
        parse_alpha(text)


def test_policy_is_described_with_its_alpha() -> None:
    assert Policy.named("ab+history").described == "ab+history, α=100…1024"
    assert Policy.named("ab+history", alpha=7, journal=True).described == "ab+history+journal, α=7"
    assert Policy.named("total", journal=True).described == "total+durable"


def test_policy_without_history_ignores_alpha() -> None:
    assert Policy.named("brb", alpha=7, alpha_max=9).alpha_ceiling == 0


def test_policy_with_history_and_no_alpha_is_refused() -> None:
    with pytest.raises(UsageError, match=r"needs an alpha of 1 or more; .* is called 'chain'"):
        Policy.named("chain+history", alpha=0)


NONSENSE: list[tuple[dict[str, Any], str]] = [
    ({"broadcast": Broadcast.DIRECT}, "cannot withstand lying publishers; use 'ab', 'brb'"),
    ({"protection": Protection.CRASH}, "'ab' is for 'byzantine' protection; with 'crash' use"),
    ({"protection": Protection.TRUSTED}, "with 'trusted-publishers' use the cheaper 'direct'"),
    ({"broadcast": Broadcast.BRACHA, "alpha": 1}, "'brb' takes no history; set alpha to 0"),
    (
        {"broadcast": Broadcast.DIRECT, "protection": Protection.TRUSTED, "alpha": 1},
        "'direct' takes no history; set alpha to 0",
    ),
    (
        {"broadcast": Broadcast.CONSENSUS, "protection": Protection.TRUSTED},
        "lying publishers or against crashes alone; use the protection 'byzantine' or 'crash'",
    ),
    ({"broadcast": Broadcast.CONSENSUS, "alpha": 1}, "'total' takes no history; set alpha to 0"),
    ({"alpha": -1}, "count publications: 0 for none, or more"),
    ({"alpha": 1, "alpha_max": -1}, "count publications: 0 for none, or more"),
    ({"alpha_max": 5}, "needs a history to adapt; set alpha to 1 or more"),
    ({"alpha": 5, "alpha_max": 4}, "alpha_max=4 is below alpha=5; raise it, or set it to 0"),
    ({"alpha": 1025}, "reaches 1025, but brokers take only 1024 .*; lower alpha or raise"),
    ({"alpha": 1, "alpha_max": 1025}, "reaches 1025, but brokers take only 1024"),
    *(
        ({"limits": Limits(**{name: 0})}, f"limit '{name}' must be 1 or more")
        for name in Limits.__struct_fields__
        if name not in MAY_BE_ZERO
    ),
    *(
        ({"limits": Limits(**{name: -1})}, f"limit '{name}' must be 0 or more")
        for name in MAY_BE_ZERO
    ),
    ({"limits": Limits(wait_ms=99)}, "'wait_ms' is 99: publishers wait 100 to 60,000"),
    ({"limits": Limits(wait_ms=60_001)}, "'wait_ms' is 60,001: publishers wait 100 to 60,000"),
    (
        {"limits": Limits(wait_ms=100), "broadcast": Broadcast.CONSENSUS},
        "publishers of a total order do not wait .*make the channel durable",
    ),
    (
        {"limits": Limits(wait_ms=100, retained_publications=4095)},
        "'retained_publications' is 4095, too few .*: raise it to 4096",
    ),
    (
        {"limits": Limits(validity_ms=2**32)},
        "limit 'validity_ms' is at most 4,294,967,295, about 49 days; 0 is for ever",
    ),
    (
        {"limits": Limits(vote_window=1023)},
        "limit 'vote_window' is 1023, too few for a 'window' .*: raise it to 1024 or more",
    ),
    (
        {"limits": Limits(retained_publications=1023)},
        "limit 'retained_publications' is 1023, too few for a 'window' .*: raise it to 1024",
    ),
    (
        {"limits": Limits(window=1000, retained_publications=1100), "alpha": 600},
        "limit 'retained_publications' is 1100, too few for a history .*: raise it to 1200",
    ),
    (
        {"limits": Limits(window=8, retained_publications=255)},
        "limit 'retained_publications' is 255, too few for a 'segment' .*: raise it to 256",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), NONSENSE)
def test_policy_of_nonsense_is_refused_with_a_way_out(
    changes: dict[str, Any], sentence: str
) -> None:
    sound = Policy(protection=Protection.BYZANTINE, broadcast=Broadcast.AUTHENTICATED)
    sound.check()
    with pytest.raises(UsageError, match=sentence):
        msgspec.structs.replace(sound, **changes).check()


def test_policy_alpha_as_large_as_the_window_passes() -> None:
    Policy.named("ab+history", alpha=1, alpha_max=1024).check()


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_policy_on_disk_is_read_as_it_is_written(name: str) -> None:
    for journal in (False, True):
        policy = Policy.named(name, journal=journal)
        assert Policy.parse(policy.title) == policy
        assert policy.name == name
        assert policy.durable == (journal and policy.total)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("brb+durable", "'brb' keeps no publications on disk; use 'total.durable', or write"),
        ("total+journal", "'total' keeps its publications on disk; write 'total.durable'"),
        ("total+durable+durable", "says twice"),
        ("total+durable+journal", "says twice"),
        ("total+fast", "there is no policy 'total.fast'"),
        ("+durable", "there is no policy ''"),
        ("gossip", "'gossip'; choose one of .* .'.durable' behind 'total' or"),
        ("gossip+journal", "'gossip'; choose one of .* '.journal' behind another has"),
    ],
)
def test_policy_on_disk_that_makes_no_sense_is_refused(text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        Policy.parse(text)
