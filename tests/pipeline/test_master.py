"""Masters of Spark: which names are taken, and what is said of the others."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from quorumcast.core.errors import UsageError
from quorumcast.pipeline.master import check_master


@pytest.fixture
def port() -> Iterator[int]:
    """Somebody answers here."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def low() -> Iterator[int]:
    """Somebody answers here, and 65,536 further on is still a number of five digits."""
    for port in range(30_000, 34_000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            yield port
            return
    pytest.fail("all of 4,000 ports are taken")


@pytest.fixture
def silent() -> Iterator[int]:
    """A port at which nobody answers, and nobody else will."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.parametrize(
    "name",
    ["local", "local[1]", "local[*]", "local[4,3]", "local-cluster[2,1,1024]", "yarn", "k8s://a:1"],
)
def test_spark_s_names_are_taken(name: str) -> None:
    check_master(name)


@pytest.mark.parametrize(
    "name",
    ["nonsense", "", "local[0]", "local[x]", "local[2", "spark://", "spark://host", "http://a:1"],
)
def test_other_names_are_refused_with_what_would_do(name: str) -> None:
    with pytest.raises(UsageError, match=r"is no master of Spark: give local\[2\]"):
        check_master(name)


def test_a_master_that_answers_is_taken(port: int) -> None:
    check_master(f"spark://127.0.0.1:{port}")


def test_of_several_masters_one_is_enough(port: int, silent: int) -> None:
    check_master(f"spark://127.0.0.1:{silent},127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "[::1]:{}", "127.0.0.1:0", "a..b:{}"])
def test_a_master_that_does_not_answer_is_named(address: str, silent: int) -> None:
    with pytest.raises(UsageError, match="no Spark answers at spark://"):
        check_master("spark://" + address.format(silent))


def test_ports_that_do_not_exist_are_not_counted_on_from_0(low: int) -> None:
    with pytest.raises(UsageError, match="no Spark answers at spark://"):
        check_master(f"spark://127.0.0.1:{low + 65_536}")
