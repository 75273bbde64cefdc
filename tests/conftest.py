"""Shared by all tests: how Hypothesis draws, and `--rewrite` for golden scripts.

The default profile draws the same examples on every run, so a red build stays red.
`HYPOTHESIS_PROFILE=explore` looks for new ones.
"""

import os
import signal

import pytest
from hypothesis import settings


def _heed_signals() -> None:
    """Tests send signals to processes that inherit ours; started by `nohup` or in the background,
    they would be deaf to some."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


_heed_signals()


settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write golden scripts anew; review the difference"
    )
