"""Shared by all tests: how Hypothesis draws, and `--rewrite` for golden scripts.

The default profile draws the same examples on every run, so a red build stays red.
`HYPOTHESIS_PROFILE=explore` looks for new ones.
"""

import os

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write golden scripts anew; review the difference"
    )
