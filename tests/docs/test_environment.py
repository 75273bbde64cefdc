"""Environment variables that the code reads are documented, and no others."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
READ = re.compile(r'(?:envvar=|environ(?:\.get|\.setdefault)?[\[(])"([A-Z_]+)"')
#: Spark sets these for its workers.
INTERNAL = re.compile("PYTHON_WORKER_|SPARK_PREFER_IPV6|SPARK_BUFFER_SIZE")


def test_environment_variables_are_those_of_the_operations_page() -> None:
    files = (ROOT / "src").rglob("*.py")
    names = {name for file in files for name in READ.findall(file.read_text(encoding="utf-8"))}
    read = {name for name in names if not INTERNAL.match(name)}
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.split("## Environment variables")[1].split("\n## ")[0]
    assert read == set(re.findall(r"^\| `([A-Z_]+)` \|", section, re.MULTILINE))
