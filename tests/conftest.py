"""Shared by all tests: how Hypothesis draws, `--rewrite` for golden scripts, and who runs where.

The default profile draws the same examples on every run, so a red build stays red.
`HYPOTHESIS_PROFILE=explore` looks for new ones.
"""

import os
import signal

import pytest
from hypothesis import settings
from tests.support import ports
from tests.support.signatures import CachingPublicKey
from tests.support.together import Together, turn
from xdist.remote import Producer

from quorumcast.crypto import identity
from quorumcast.testing import bed


def _heed_signals() -> None:
    """Tests send signals to processes that inherit ours; started by `nohup` or in the background,
    they would be deaf to some."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


_heed_signals()


bed._PORTS = ports.SINGLE
identity.Ed25519PublicKey = CachingPublicKey  # type: ignore[attr-defined, assignment]

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write golden scripts anew; review the difference"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Together | None:
    if config.getoption("dist") != "load":  # the default; whoever names another one wants that
        return None
    config.option.loadscopereorder = False  # the order is ours
    return Together(config, log)
