"""Every deliberately wrong variant is caught, and its attack leaves the correct code unharmed."""

import pytest

from quorumcast.core.errors import UsageError
from quorumcast.core.quorum import Quorums
from quorumcast.sim.cell.known_bad.catalogue import VARIANTS
from quorumcast.sim.kernel.known_bad import Patch, Variant, mistaken
from quorumcast.sim.systems import planted, try_variant

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_variant_is_caught_and_its_attack_is_otherwise_clean(variant: Variant) -> None:
    catch = try_variant(variant)
    assert catch.caught, variant.mistake
    assert catch.by in variant.caught_by
    assert catch.clean, f"the attack of seed {catch.seed} breaks the correct code as well"


def test_variants_are_many_and_told_apart() -> None:
    names = [variant.name for variant in VARIANTS]
    assert len(names) == len(set(names)) >= 16


def test_mistaken_puts_everything_back_even_after_an_error() -> None:
    before = Quorums(4, 1).echo
    seen = []

    def fail() -> None:
        with mistaken([Patch(Quorums, "echo", property(lambda quorums: 0))]):
            seen.append(Quorums(4, 1).echo)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (seen, Quorums(4, 1).echo) == ([0], before)


def test_planted_variant_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"there is no variant 'nobody'; choose one of .*no-dedup"):
        planted("nobody")
