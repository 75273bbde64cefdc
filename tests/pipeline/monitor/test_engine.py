"""What rules make of signals: conditions begin once and end once, also across hosts."""

from pathlib import Path

import msgspec
import pytest

from quorumcast.core.errors import UsageError
from quorumcast.monitoring import engine as watching
from quorumcast.monitoring.durable_engine import DurableEngine
from quorumcast.monitoring.engine import Alarm, AlarmEngine, Bucket, EngineState
from quorumcast.monitoring.rules import FORGET_S, Rules, parse_rules

BUSY = '[[rule]]\nname = "busy"\nkind = "threshold"\nsignal = "cpu"\nabove = 90\nover_s = 30\n'
SILENT = '[[rule]]\nname = "silent"\nkind = "absence"\nafter_s = 60\n'
OOM = '[[rule]]\nname = "oom"\nkind = "logs"\npattern = "x"\nat_least = 2\nover_s = 30\n'


def rules(text: str) -> Rules:
    return parse_rules(text, "r")


def cpu(start: int, value: float, host: str = "a", *, count: int = 1, item: str = "") -> Bucket:
    return Bucket(start, host, "cpu", item, count, value * count, value, value, value, start + 9.0)


def lines(start: int, count: int, host: str = "a") -> Bucket:
    return Bucket(start, host, "rule:oom", "", count, count, 1, 1, 1, start + 9.0)


def told(alarms: list[Alarm]) -> list[tuple[str, str, str]]:
    return [(alarm.rule, alarm.host, alarm.state) for alarm in alarms]


def test_condition_is_raised_once_and_cleared_once() -> None:
    engine = AlarmEngine(rules(BUSY))
    found = [told(engine.absorb([cpu(start, 95)])) for start in (0, 10, 20, 30, 40)]
    assert found == [[], [], [("busy", "a", "raised")], [], []]
    assert [condition.value for condition in engine.alarms] == [95]
    found = [told(engine.absorb([cpu(start, 10)])) for start in (50, 60)]
    assert found == [[("busy", "a", "cleared")], []]
    assert engine.alarms == []


def test_peak_is_not_a_mean_before_the_window_is_full() -> None:
    engine = AlarmEngine(rules(BUSY))
    assert engine.absorb([cpu(0, 100)]) == []
    highest = AlarmEngine(rules(BUSY + 'aggregate = "max"\n'))
    assert told(highest.absorb([cpu(0, 100)])) == [("busy", "a", "raised")]


@pytest.mark.parametrize(
    ("aggregate", "value"),
    # Those that need no whole window are decided by the first bucket.
    [("mean", 40), ("min", 10), ("max", 50), ("last", 50), ("sum", 150), ("count", 3)],
)
def test_window_is_aggregated_as_the_rule_says(aggregate: str, value: float) -> None:
    text = BUSY.replace("above = 90", "above = 0") + f'aggregate = "{aggregate}"\n'
    engine = AlarmEngine(rules(text))
    engine.absorb([cpu(0, 50, count=3), cpu(10, 40), cpu(20, 10)])
    assert [condition.value for condition in engine.alarms] == [value]


def test_same_buckets_again_change_nothing() -> None:
    engine = AlarmEngine(rules(BUSY))
    buckets = [cpu(start, 95) for start in (0, 10, 20)]
    assert len(engine.absorb(buckets)) == 1
    before = msgspec.json.encode(engine.state)
    assert engine.absorb(buckets) == []
    assert msgspec.json.encode(engine.state) == before


def test_backlog_raises_and_clears_what_it_would_have_when_it_was_new() -> None:
    values = [95, 95, 95, 10, 10, 10, 95, 95, 95]
    buckets = [cpu(10 * i, value) for i, value in enumerate(values)]
    at_once = AlarmEngine(rules(BUSY))
    one_by_one = AlarmEngine(rules(BUSY))
    alarms = at_once.absorb(buckets)
    assert [state for _, _, state in told(alarms)] == ["raised", "cleared", "raised"]
    assert told(alarms) == told([a for b in buckets for a in one_by_one.absorb([b])])
    assert len({alarm.id for alarm in alarms}) == 2


def test_silent_host_is_told_once_and_keeps_its_other_conditions() -> None:
    engine = AlarmEngine(rules(BUSY + SILENT))
    engine.absorb([cpu(start, 95) for start in (0, 10, 20)])
    assert told(engine.elapse(80)) == []
    assert told(engine.elapse(100)) == [("silent", "a", "raised")]
    assert told(engine.elapse(200)) == []
    assert {condition.rule for condition in engine.alarms} == {"busy", "silent"}
    assert ("silent", "a", "cleared") in told(engine.absorb([cpu(200, 95)]))


def test_host_that_is_silent_for_long_keeps_its_conditions_until_it_speaks_or_is_given_up() -> None:
    engine = AlarmEngine(rules(BUSY))
    engine.absorb([cpu(start, 95) for start in (0, 10, 20)])
    for start in range(30, 4000, 10):
        assert engine.absorb([cpu(start, 1, "b")]) == []
    assert "a" not in {series.host for series in engine.series}
    assert [condition.host for condition in engine.alarms] == ["a"]
    again = AlarmEngine(rules(BUSY), engine.state)
    assert told(again.absorb([cpu(4000, 1, "a")])) == [("busy", "a", "cleared")]
    far = FORGET_S + 4000
    alarms = [*engine.absorb([cpu(far, 1, "b")]), *engine.absorb([cpu(far + 10, 1, "b")])]
    assert told(alarms) == [("busy", "a", "cleared")]


def test_item_that_is_gone_from_a_host_that_speaks_is_cleared_in_the_end() -> None:
    engine = AlarmEngine(rules(BUSY + 'aggregate = "max"\n'))
    assert len(engine.absorb([cpu(0, 95, item="/data")])) == 1
    found = [told(engine.absorb([cpu(start, 1, item="/")])) for start in range(10, 1000, 10)]
    assert [alarms for alarms in found if alarms] == [[("busy", "a", "cleared")]]


def test_silence_of_one_host_shows_in_the_time_of_the_others() -> None:
    engine = AlarmEngine(rules(SILENT))
    engine.absorb([cpu(0, 1, "a"), cpu(0, 1, "b")])
    assert told(engine.absorb([cpu(80, 1, "b")])) == [("silent", "a", "raised")]


def test_lines_are_counted_over_the_window_and_forgotten_after_it() -> None:
    engine = AlarmEngine(rules(OOM))
    assert engine.absorb([lines(0, 1)]) == []
    assert told(engine.absorb([lines(20, 1)])) == [("oom", "a", "raised")]
    assert told(engine.elapse(61)) == [("oom", "a", "cleared")]


def test_hosts_and_items_that_a_rule_does_not_name_are_left_alone() -> None:
    engine = AlarmEngine(rules(BUSY + 'aggregate = "max"\nhosts = "web-*"\nitems = "/data*"\n'))
    alarms = engine.absorb(
        [cpu(0, 99, "web-1", item="/data1"), cpu(0, 99, "web-1", item="/"), cpu(0, 99, "db")]
    )
    assert [(alarm.host, alarm.item) for alarm in alarms] == [("web-1", "/data1")]


TOGETHER = (
    BUSY + 'aggregate = "max"\nquiet = true\n'
    '[[rule]]\nname = "storm"\nkind = "together"\nof = "busy"\nat_least = 3\nwithin_s = 60\n'
)


def test_condition_on_enough_hosts_within_a_while_is_one_alarm() -> None:
    engine = AlarmEngine(rules(TOGETHER))
    assert engine.absorb([cpu(0, 99, "a")]) == []
    assert engine.absorb([cpu(40, 99, "b")]) == []
    assert told(engine.absorb([cpu(50, 99, "c")])) == [("storm", "*", "raised")]
    assert engine.absorb([cpu(60, 99, "d")]) == []
    cleared = engine.absorb([cpu(start, 1, host) for start in (70, 160) for host in "abcd"])
    assert told(cleared) == [("storm", "*", "cleared")]


def test_condition_on_hosts_too_far_apart_in_time_is_none() -> None:
    engine = AlarmEngine(rules(TOGETHER))
    for start, host in ((0, "a"), (100, "b"), (200, "c")):
        assert engine.absorb([cpu(start, 99, host), cpu(start + 30, 1, host)]) == []


SEQUENCE = (
    OOM + BUSY + 'aggregate = "max"\n'
    '[[rule]]\nname = "moved"\nkind = "sequence"\nfirst = "oom"\nthen = "busy"\nwithin_s = 60\n'
)


def test_pattern_on_one_host_before_a_threshold_on_another_is_one_alarm() -> None:
    engine = AlarmEngine(rules(SEQUENCE))
    engine.absorb([lines(0, 2, "a")])
    raised = [told(engine.absorb([cpu(start, 99, "b")])) for start in (40, 50, 160)]
    assert raised[0][-2:] == [("busy", "b", "raised"), ("moved", "b", "raised")]
    assert all(("moved", "b", "raised") not in later for later in raised[1:])
    ended = engine.absorb([cpu(start, 1, "b") for start in (170, 180, 190)])
    assert ("moved", "b", "cleared") in told(ended)


@pytest.mark.parametrize(
    "buckets",
    [
        [cpu(0, 99, "b"), lines(40, 2, "a")],  # the other way round
        [lines(0, 2, "b"), cpu(40, 99, "b")],  # on one host
        [lines(0, 2, "a"), cpu(100, 99, "b")],  # too late
    ],
)
def test_conditions_that_are_no_sequence_raise_none(buckets: list[Bucket]) -> None:
    engine = AlarmEngine(rules(SEQUENCE))
    alarms = [alarm for bucket in buckets for alarm in engine.absorb([bucket])]
    assert "moved" not in {alarm.rule for alarm in alarms}
    assert {alarm.rule for alarm in alarms} >= {"oom", "busy"}


def test_series_beyond_the_limit_are_counted_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MAX_SERIES", 3)
    engine = AlarmEngine(rules(BUSY))
    engine.absorb([cpu(0, 1, f"host-{i}", count=2) for i in range(5)])
    assert (len(engine.series), len(engine.heard), engine.ignored) == (3, 3, 4)


def test_hosts_beyond_the_limit_are_counted_and_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "MAX_HOSTS", 3)
    engine = AlarmEngine(rules(BUSY))
    # Series are forgotten long before their hosts are.
    for number in range(6):
        engine.absorb([cpu(number * 10_000, 1, f"host-{number}")])
    engine.absorb([cpu(60_000, 1, "host-0")])
    assert set(engine.heard) == {"host-0", "host-1", "host-2"}
    assert (engine.heard["host-0"], engine.ignored) == (60_009.0, 3)


def test_open_conditions_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MAX_OPEN", 2)
    engine = AlarmEngine(rules(BUSY + 'aggregate = "max"\n'))
    assert len(engine.absorb([cpu(0, 99, f"host-{i}") for i in range(3)])) == 2
    assert engine.ignored == 1


def test_old_buckets_and_hosts_are_forgotten() -> None:
    engine = AlarmEngine(rules(BUSY))
    for start in range(0, 20_000, 10):
        engine.absorb([cpu(start, 1)])
    assert max(len(line) for line in engine.series.values()) <= watching.DRAWN + 3
    engine.absorb([cpu(20_000 + FORGET_S, 1, "b")])
    assert set(engine.heard) == {"b"}


# ---------------------------------------------------------------------------- the durable engine


def written(durable: DurableEngine) -> list[Alarm]:
    return [
        msgspec.json.decode(line, type=Alarm)
        for path in sorted(durable.alarms.glob("*.json"))
        for line in path.read_bytes().splitlines()
    ]


def test_durable_engine_goes_on_where_it_stopped_and_writes_each_alarm_once(tmp_path: Path) -> None:
    buckets = [cpu(start, 95) for start in (0, 10, 20, 30)]
    for bucket in buckets:
        durable = DurableEngine(tmp_path, rules(BUSY))  # a new process for each
        durable.apply(lambda engine, bucket=bucket: engine.absorb([bucket]))  # type: ignore[misc]
    last = DurableEngine(tmp_path, rules(BUSY))
    assert told(written(last)) == [("busy", "a", "raised")]
    assert [alarm.state for alarm in last.recent] == ["raised"]


def test_durable_engine_writes_the_alarms_of_a_process_that_was_killed(
    tmp_path: Path,
) -> None:
    durable = DurableEngine(tmp_path, rules(BUSY))
    durable.apply(lambda engine: engine.absorb([cpu(start, 95) for start in (0, 10, 20)]))
    (path,) = durable.alarms.glob("*.json")
    contents = path.read_bytes()
    path.unlink()
    DurableEngine(tmp_path, rules(BUSY))
    assert path.read_bytes() == contents


def test_durable_engine_that_is_damaged_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "book.bin").write_bytes(b"\xc1")
    with pytest.raises(UsageError, match="is damaged"):
        DurableEngine(tmp_path, rules(BUSY))


def test_buckets_of_another_length_are_not_compared() -> None:
    engine = AlarmEngine(rules(BUSY))
    engine.absorb([cpu(start, 95) for start in (0, 10, 20)])
    again = AlarmEngine(rules("bucket_s = 5\n" + BUSY), engine.state)
    assert again.series == {}
    assert len(again.alarms) == 1


def test_rules_that_are_gone_hold_no_more() -> None:
    engine = AlarmEngine(rules(BUSY))
    engine.absorb([cpu(start, 95) for start in (0, 10, 20)])
    memory = msgspec.json.decode(msgspec.json.encode(engine.state), type=EngineState)
    assert len(AlarmEngine(rules(BUSY), memory).alarms) == 1
    assert AlarmEngine(rules(SILENT), memory).alarms == []


def test_alarm_of_a_rule_that_is_gone_is_cleared_once_as_it_was_raised(tmp_path: Path) -> None:
    severe = BUSY + 'severity = "critical"\n'
    buckets = [cpu(start, 95) for start in (0, 10, 20)]
    raised = DurableEngine(tmp_path, rules(severe)).apply(lambda engine: engine.absorb(buckets))
    DurableEngine(tmp_path, rules(SILENT))  # this one ends before its first step
    cleared = DurableEngine(tmp_path, rules(SILENT)).apply(lambda engine: engine.elapse(40))
    assert told(cleared) == [("busy", "a", "cleared")]
    assert [alarm.id for alarm in cleared] == [alarm.id for alarm in raised]
    assert [alarm.severity for alarm in cleared] == ["critical"]
    assert DurableEngine(tmp_path, rules(SILENT)).apply(lambda engine: engine.elapse(50)) == []


def test_rule_that_was_quiet_clears_nothing_when_it_is_gone() -> None:
    engine = AlarmEngine(rules(BUSY + "quiet = true\n"))
    assert engine.absorb([cpu(start, 95) for start in (0, 10, 20)]) == []
    assert AlarmEngine(rules(SILENT), engine.state).elapse(40) == []
    assert told(AlarmEngine(rules(BUSY), engine.state).absorb([cpu(30, 1)])) == [], "never raised"
