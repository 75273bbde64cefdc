"""Every script in this folder says exactly what it said when it was last reviewed."""

from __future__ import annotations

import os
import subprocess
import sys
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


def test_scripts_under_a_fixed_hash_seed_say_the_same() -> None:
    root = HERE.parents[1]
    check = (
        "from pathlib import Path; from tests.support.golden import rewritten, scripts; "
        "texts = [path.read_text() for path in scripts(Path('tests/golden'))]; "
        "print(sum(rewritten(text) != text for text in texts), len(texts))"
    )
    told = subprocess.run(
        [sys.executable, "-c", check],
        cwd=root,
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": f"{root}/src:{root}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == ["0", str(len(scripts(HERE)))]


def test_script_with_an_unknown_command_is_refused() -> None:
    with pytest.raises(AttributeError, match="_do_dance"):
        rewritten("cell policy=ab\ndance\n----\n(silence)\n")


def test_script_with_another_expectation_is_noticed() -> None:
    script = "cell policy=ab\n----\n(silence)\n\npublisher alice\n----\n(silence)\n"
    assert rewritten(script) != script
