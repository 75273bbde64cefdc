"""Every script in this folder says exactly what it said when it was last reviewed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.golden import rewritten, scripts

HERE = Path(__file__).parent


@pytest.mark.parametrize("path", scripts(HERE), ids=lambda path: path.stem)
def test_script_says_what_was_reviewed(path: Path, request: pytest.FixtureRequest) -> None:
    script = path.read_text(encoding="utf-8")
    now = rewritten(script)
    if request.config.getoption("--rewrite"):
        path.write_text(now, encoding="utf-8")
    else:
        assert now == script


def test_script_runs_twice_with_the_same_words() -> None:
    script = scripts(HERE)[0].read_text(encoding="utf-8")
    assert rewritten(script) == rewritten(rewritten(script))


def test_script_with_another_expectation_is_noticed() -> None:
    script = "cell policy=ab\n----\n(silence)\n\npublisher alice\n----\n(silence)\n"
    assert rewritten(script) != script
