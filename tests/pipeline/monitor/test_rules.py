"""Rules files: those that are read, and what people are told about the others."""

from pathlib import Path

import pytest

from quorumcast.core.errors import UsageError
from quorumcast.monitoring.engine import AlarmEngine, Bucket
from quorumcast.monitoring.rules import (
    MAX_RULES,
    Logs,
    Together,
    default_rules,
    parse_rules,
    read_rules,
)

RULE = '[[rule]]\nname = "busy"\nkind = "threshold"\nsignal = "cpu.percent"\nabove = 90\n'


def test_default_rules_are_read_and_have_every_kind() -> None:
    rules = read_rules(None)
    kinds = {type(rule).__name__ for rule in rules.rule}
    assert kinds == {"Threshold", "Absence", "Logs", "Together", "Sequence"}
    assert rules == parse_rules(default_rules(), "text")
    assert "cpu.percent" in rules.signals
    assert rules.longest_s == 60


def test_default_rule_about_losses_holds_as_long_as_a_probe_loses_data() -> None:
    engine = AlarmEngine(read_rules(None))

    def lost(start: int, count: float) -> list[str]:
        heard = start + 9.0
        bucket = Bucket(start, "a", "probe.dropped", "syslog", 2, count, 0, count, 0, heard)
        return [
            alarm.state for alarm in engine.absorb([bucket]) if alarm.rule == "probe loses data"
        ]

    assert [lost(start, 0) for start in (0, 10)] == [[], []]
    assert lost(20, 7) == ["raised"]
    assert [lost(start, 0) for start in range(30, 80, 10)] == [[]] * 5
    assert lost(80, 0) == ["cleared"]


def test_rules_keep_what_was_said() -> None:
    text = RULE + (
        '[[rule]]\nname = "e"\nkind = "logs"\nlevel = "error"\nquiet = true\n'
        '[[rule]]\nname = "all"\nkind = "together"\nof = "e"\nat_least = 4\n'
    )
    _, logs, together = parse_rules(text, "r").rule
    assert logs == Logs(name="e", level="error", quiet=True)
    assert together == Together(name="all", of="e", at_least=4)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[rule]\n", r"r is not TOML: .*line 1"),
        ("bucket_s = 0\n", r"r, line 1: 'bucket_s' is 1 or more"),
        ("\nlate_s = -1\n", r"r, line 2: 'late_s'"),
        ("speed = 1\n", r"r, line 1: .*unknown field 'speed'"),
        (RULE.replace("90", '"high"'), r"r, line 5: 'above': expected 'float"),
        (RULE.replace("above = 90", ""), r"r, line 2: .*needs one of 'above' and 'below'"),
        (RULE + "below = 1\n", r"r, line 2: .*one of"),
        (RULE.replace("threshold", "treshold"), r"r, line 3: 'kind': invalid value 'treshold'"),
        (RULE.replace('signal = "cpu.percent"\n', ""), r"r, line 1: .*missing .*'signal'"),
        (RULE + RULE, r"r, line 7: 'name' 'busy' is taken"),
        (RULE + 'severity = "bad"\n', r"r, line 6: 'severity' is one of info, warning, critical"),
        (RULE + "over_s = 25\n", r"r, line 6: 'over_s' is a multiple of bucket_s, which is 10"),
        (RULE + 'aggregate = "median"\n', r"r, line 6: 'aggregate' is one of mean"),
        (RULE + "abvoe = 3\n", r"r, line 6: .*unknown field 'abvoe'"),
        (RULE + '[[rule]]\nname = "x"\nkind = "logs"\n', r"r, line 7: .*needs a 'pattern'"),
        (
            '[[rule]]\nname = "x"\nkind = "logs"\npattern = "("\n',
            r"r, line 4: 'pattern' is not a regular expression",
        ),
        (
            '[[rule]]\nname = "x"\nkind = "logs"\nlevel = "loud"\n',
            r"r, line 4: 'level' is one of emergency",
        ),
        (
            RULE + '[[rule]]\nname = "t"\nkind = "together"\nof = "bsy"\n',
            r"r, line 9: 'of' names 'bsy', and there is no such rule",
        ),
        (
            '[[rule]]\nname = "s"\nkind = "absence"\nafter_s = 0\n',
            r"r, line 4: 'after_s' is 1 or more",
        ),
        ("bucket_s = 604810\n", r"r, line 1: 'bucket_s' is 1 or more, and at most 604800"),
        ("late_s = 99999999999999999999\n", r"r, line 1: 'late_s' is 0 or more, and at most"),
        (RULE + "over_s = 604810\n", r"r, line 6: 'over_s' is at most 604800"),
        (RULE.replace("90", "nan"), r"r, line 5: 'above' is a number that values can be"),
        (RULE.replace("above = 90", "below = -inf"), r"r, line 5: 'below' is a number that"),
        (
            '[[rule]]\nname = "s"\nkind = "absence"\nafter_s = 604800\n',
            r"r, line 4: 'after_s' is 1 or more, and less than 604800",
        ),
        (
            RULE + '[[rule]]\nname = "t"\nkind = "together"\nof = "busy"\nwithin_s = 604801\n',
            r"r, line 10: 'within_s' is 1 or more, and at most 604800",
        ),
        ("bucket_s = " + "[" * 20_000, r"r has values within values without end"),
        (
            "".join(RULE.replace("busy", f"b{i}") for i in range(MAX_RULES + 1)),
            rf"r, line {5 * MAX_RULES + 2}: 'name' is one rule too many",
        ),
    ],
)
def test_mistake_is_one_sentence_with_its_line(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_rules(text, "r")


def test_correlation_of_correlations_is_refused() -> None:
    text = RULE + (
        '[[rule]]\nname = "t"\nkind = "together"\nof = "busy"\n'
        '[[rule]]\nname = "s"\nkind = "sequence"\nfirst = "busy"\nthen = "t"\n'
    )
    with pytest.raises(UsageError, match=r"line 14: 'then' names 't', which is not about single"):
        parse_rules(text, "r")


def test_file_that_is_not_there_says_where_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="monitor rules"):
        read_rules(tmp_path / "rules.toml")
