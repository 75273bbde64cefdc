"""The page: what it shows, and that nothing on it does anything."""

import re
from pathlib import Path
from xml.etree import ElementTree

from quorumcast.monitoring.engine import AlarmEngine, Bucket
from quorumcast.monitoring.report import MAX_HOSTS, ReportFacts, page, sparkline, write_report
from quorumcast.monitoring.rules import parse_rules

RULES = parse_rules(
    '[[rule]]\nname = "busy"\nkind = "threshold"\nsignal = "cpu.percent"\naggregate = "last"\n'
    'above = 90\nseverity = "critical"\n',
    "r",
)
FACTS = ReportFacts(cell="plant", now=1_000_040.0, stored=1234, lag={"metrics": 7}, running=True)


def bucket(host: str, signal: str, value: float, item: str = "", start: int = 1_000_000) -> Bucket:
    return Bucket(start, host, signal, item, 1, value, value, value, value, start + 5.0)


def test_page_shows_hosts_alarms_dissent_and_lag(tmp_path: Path) -> None:
    engine = AlarmEngine(RULES)
    alarms = engine.absorb(
        [
            bucket("web-1", "cpu.percent", 50, start=999_990),
            bucket("web-1", "cpu.percent", 99.5),
            bucket("web-1", "disk.percent", 20, "/"),
            bucket("web-1", "disk.percent", 80, "/data"),
            bucket("web-1", "logs", 1, "error"),
            bucket("db", "dissent", 1, "broker-3"),
        ]
    )
    write_report(tmp_path / "deep" / "report.html", engine, alarms, FACTS)
    text = (tmp_path / "deep" / "report.html").read_text()
    assert "behind by 7 publications (metrics 7)" in text
    assert "1,234 rows stored" in text
    assert re.search(r'class="critical">critical</span></td><td class="n">busy', text)
    assert "broker-3" in text
    assert "99.5" in text
    assert 'title="/data"' in text, "of several disks the fullest one"
    assert '<meta http-equiv="refresh"' in text
    assert "src=" not in text, "it needs nothing beside itself"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["report.html"]


def test_page_that_is_not_refreshed_does_not_say_so() -> None:
    assert "http-equiv" not in page(AlarmEngine(RULES), [], ReportFacts(
        cell="c", now=0, stored=0, lag={}, running=False))  # fmt: skip


def test_page_escapes_whatever_hosts_say() -> None:
    evil = '<script>alert("1")</script>'
    engine = AlarmEngine(RULES)
    alarms = engine.absorb(
        [
            bucket(evil, "cpu.percent", 99, evil),
            bucket(evil, "dissent", 1, evil),
            bucket(evil, "disk.percent", 1, f'"{evil}'),
        ]
    )
    facts = ReportFacts(
        cell=evil, now=0, stored=0, lag={evil: 1}, troubles={evil: evil}, running=False
    )
    text = page(engine, alarms, facts)
    assert "<script" not in text
    assert '""' not in text.replace('content=""', "")


def test_page_of_many_hosts_stays_readable() -> None:
    engine = AlarmEngine(RULES)
    engine.absorb([bucket(f"host-{i}", "cpu.percent", 1) for i in range(MAX_HOSTS + 5)])
    text = page(engine, [], FACTS)
    assert "and 5 more hosts" in text
    assert text.count("<svg") == MAX_HOSTS


def test_sparkline_stays_within_its_box() -> None:
    drawn = ElementTree.fromstring(sparkline([1, 5, 3, 3, 9]))
    points = [tuple(map(float, p.split(","))) for p in drawn[0].attrib["points"].split()]
    assert len(points) == 5
    assert all(0 <= x <= 120 and 0 <= y <= 24 for x, y in points)
    assert points[4][1] < points[0][1], "more is higher"
    assert sparkline([]) == ""
