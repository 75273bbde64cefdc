"""The form of commit messages, tried on bad examples and on a small repository."""

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.house.commits import complaints, new_commits

WHY = "It was wrong."
NOWHERE = "0" * 40

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.mark.parametrize(
    ("subject", "body", "word"),
    [
        ("history: " + "x" * 64, WHY, "73 characters"),
        ("Mend the history", WHY, "part: what"),
        ("History: mend it", WHY, "part: what"),
        ("history:mend it", WHY, "part: what"),
        ("outlet bracha: mend it", WHY, "part: what"),
        ("history: mend it", "\n", "body"),
    ],
)
def test_complaints_bad_message_is_noticed(subject: str, body: str, word: str) -> None:
    (complaint,) = complaints(subject, body)
    assert word in complaint


@pytest.mark.parametrize(
    "subject", ["history: " + "x" * 63, "outlet, bracha: mend it", "chain+history: mend it"]
)
def test_complaints_good_message_passes(subject: str) -> None:
    assert list(complaints(subject, WHY)) == []


def git(tree: Path, *words: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", *who, *words]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout


@needs_git
def test_new_commits_are_those_after_the_base_without_merges(tmp_path: Path) -> None:
    def commit(*message: str) -> None:
        git(tmp_path, "commit", "--allow-empty", *(part for m in message for part in ("-m", m)))

    git(tmp_path, "init", "-b", "main")
    commit("old")
    base = git(tmp_path, "rev-parse", "HEAD").strip()
    git(tmp_path, "checkout", "-b", "side")
    commit("side: go", "Why.\n\nMore.")
    git(tmp_path, "checkout", "main")
    commit("bare")
    git(tmp_path, "merge", "--no-ff", "-m", "Merge side", "side")
    found = {(subject, body.strip()) for _, subject, body in new_commits(tmp_path, base)}
    assert found == {("side: go", "Why.\n\nMore."), ("bare", "")}


@needs_git
def test_new_commits_without_history_or_base_are_none(tmp_path: Path) -> None:
    assert list(new_commits(tmp_path, NOWHERE)) == []
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "bare")
    assert list(new_commits(tmp_path, NOWHERE)) == []
