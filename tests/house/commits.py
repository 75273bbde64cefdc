"""The form of commit messages, for `make lint`: `part: what` in at most 72 characters, and a body.

Only commits after BASE are read. Nothing is checked where git or BASE is missing: in a source
tree without history, or in a shallow clone.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

BASE = "f87be6a546639bc5b8545d40ea3e82ebf52bc81b"
MAX_SUBJECT = 72
PART = r"[a-z][\w+.-]*"
SUBJECT = re.compile(rf"{PART}(, {PART})*: \S")


def complaints(subject: str, body: str) -> Iterator[str]:
    if len(subject) > MAX_SUBJECT:
        yield f"the subject has {len(subject)} characters, at most {MAX_SUBJECT}"
    if not SUBJECT.match(subject):
        yield "the subject does not read `part: what`"
    if not body.strip():
        yield "the body that says why is missing"


def new_commits(tree: Path, base: str = BASE) -> Iterator[tuple[str, str, str]]:
    """Hash, subject and body of each commit after `base`, without merges."""
    command = ["git", "log", "--no-merges", "--format=%h%x00%s%x00%b%x1e", f"{base}..HEAD"]
    try:
        log = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return
    for commit in log.split("\x1e")[:-1]:
        name, subject, body = commit.strip("\n").split("\0")
        yield name, subject, body


def main() -> int:
    found = [
        f"commit {name} ({subject}): {complaint}"
        for name, subject, body in new_commits(Path(__file__).parent)
        for complaint in complaints(subject, body)
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
