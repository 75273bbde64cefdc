"""Settings of all tests: Hypothesis, `--rewrite` for golden scripts, units of work for workers.

The default profile draws the same examples on every run, so a red build stays red.
`HYPOTHESIS_PROFILE=explore` looks for new ones.
"""

import gc
import os
import signal

import pytest
from hypothesis import settings
from tests.support import ports
from tests.support.scheduling import UnitScheduling, start_rank
from tests.support.signatures import CachingPublicKey
from xdist.remote import Producer

from quorumcast.crypto import identity
from quorumcast.testing import bed


def _restore_signals() -> None:
    """Processes that tests start inherit ignored signals, and tests send them SIGINT and SIGHUP.

    `nohup` and shells that start pytest in the background ignore one of the two.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


_restore_signals()


bed._PORTS = ports.SINGLE
identity.Ed25519PublicKey = CachingPublicKey  # type: ignore[attr-defined, assignment]

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write golden scripts anew; review the difference"
    )


def pytest_collection_finish() -> None:
    """Keep the collector from going through thousands of tests again and again, as brokers do.

    It takes a tenth of the processor time of a simulation otherwise.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=start_rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> UnitScheduling | None:
    if config.getoption("dist") != "load":  # the default; an explicit --dist is respected
        return None
    config.option.loadscopereorder = False  # keep the order of start_rank
    return UnitScheduling(config, log)
