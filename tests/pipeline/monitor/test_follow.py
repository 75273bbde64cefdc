"""Log files as they grow, are rotated, truncated and read again after a restart."""

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumcast.core.errors import UsageError
from quorumcast.monitoring.follow import LEAVING_LOOKS, LogFile, LogPosition, LogPositions
from quorumcast.monitoring.lines import MAX_LINE_BYTES


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def lines(file: LogFile, looks: int = 1) -> list[bytes]:
    """What so many looks find."""
    return [line for _ in range(looks) for _, line in file.read()]


def settled(file: LogFile) -> list[bytes]:
    """What is found until nothing more can be."""
    return lines(file, 4 * LEAVING_LOOKS)


Follow = Callable[..., LogFile]


@pytest.fixture
def follow() -> Iterator[Follow]:
    """`LogFile`, closed when the test is over."""
    opened: list[LogFile] = []

    def made(*arguments: Any, **options: Any) -> LogFile:
        opened.append(LogFile(*arguments, **options))
        return opened[-1]

    yield made
    for file in opened:
        file.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


def test_file_that_was_there_is_followed_from_its_end(follow: Follow, log: Path) -> None:
    log.write_bytes(b"old\nbeing writ")
    file = follow(log)
    assert lines(file) == []
    append(log, b"ten\nnew\n")
    assert lines(file) == [b"being written\n", b"new\n"]


def test_file_that_comes_later_is_read_from_its_beginning(follow: Follow, log: Path) -> None:
    file = follow(log)
    assert lines(file) == []
    append(log, b"first\n")
    assert lines(file) == [b"first\n"]


def test_unfinished_line_waits_for_its_end(follow: Follow, log: Path) -> None:
    file = follow(log, from_start=True)
    append(log, b"one\ntw")
    assert lines(file, 3) == [b"one\n"]
    append(log, b"o\n")
    assert lines(file) == [b"two\n"]


def test_long_line_comes_in_pieces_that_cut_no_character(follow: Follow, log: Path) -> None:
    text = ("x" + "é" * MAX_LINE_BYTES).encode()
    append(log, text + b"\nnext\n")
    found = settled(follow(log, from_start=True))
    assert b"".join(found) == text + b"\nnext\n"
    assert all(len(line) <= MAX_LINE_BYTES for line in found)
    assert "\ufffd" not in "".join(line.decode(errors="replace") for line in found)


def test_renamed_file_is_read_to_its_end_before_the_new_one(follow: Follow, log: Path) -> None:
    file = follow(log, from_start=True)
    append(log, b"one\n")
    assert lines(file) == [b"one\n"]
    with log.open("ab") as writer:
        log.rename(log.with_name("app.log.1"))
        log.write_bytes(b"three\n")
        assert lines(file) == []
        writer.write(b"two\nunfinished")  # the writer has not noticed yet
        writer.flush()
        assert settled(file) == [b"two\n", b"unfinished", b"three\n"]


def test_two_rotations_between_two_looks_lose_nothing(follow: Follow, log: Path) -> None:
    file = follow(log, from_start=True)
    append(log, b"one\n")
    assert lines(file) == [b"one\n"]
    for number, text in enumerate((b"two\n", b"three\n")):
        rotated = log.with_name(f"app.log.{9 - number}")
        log.rename(rotated)
        os.utime(rotated, ns=(number, number))
        append(log, text)
    assert settled(file) == [b"two\n", b"three\n"]


def test_truncated_file_is_read_from_its_beginning(follow: Follow, log: Path) -> None:
    file = follow(log, from_start=True)
    append(log, b"one\ntwo\n")
    first = file.read()
    log.write_bytes(b"one\n")
    second = file.read()
    assert [line for _, line in second] == [b"one\n"]
    assert second[0][0] != first[0][0], "the same line at the same position, but another one"


def test_file_rewritten_with_more_than_before_is_noticed(follow: Follow, log: Path) -> None:
    file = follow(log, from_start=True)
    append(log, b"one\n")
    assert lines(file) == [b"one\n"]
    log.write_bytes(b"uno\ndue\ntre\n")
    assert lines(file) == [b"uno\n", b"due\n", b"tre\n"]


def test_copied_and_truncated_file_is_finished_in_its_copy(follow: Follow, log: Path) -> None:
    file = follow(log, from_start=True)
    append(log, b"one\n")
    assert lines(file) == [b"one\n"]
    append(log, b"two\n")
    shutil.copy(log, log.with_name("app.log.1"))
    log.write_bytes(b"")
    append(log, b"3\n")
    assert settled(file) == [b"two\n", b"3\n"]


def test_file_that_is_gone_is_waited_for(follow: Follow, log: Path) -> None:
    file = follow(log, from_start=True)
    append(log, b"one\n")
    assert lines(file) == [b"one\n"]
    log.unlink()
    assert lines(file, 10) == []
    append(log, b"two\n")
    assert settled(file) == [b"two\n"]


def test_restart_goes_on_behind_the_last_place_that_was_kept(
    follow: Follow, log: Path, tmp_path: Path
) -> None:
    append(log, b"one\ntwo\n")
    before = follow(log, from_start=True)
    assert lines(before) == [b"one\n", b"two\n"]
    assert before.position is not None
    LogPositions(tmp_path / "state" / "places.json").keep(log, before.position)
    append(log, b"three\n")
    after = follow(log, LogPositions(tmp_path / "state" / "places.json").get(log))
    assert lines(after) == [b"three\n"]


def test_rotation_while_the_probe_was_down_loses_nothing(follow: Follow, log: Path) -> None:
    before = follow(log, from_start=True)
    append(log, b"one\n")
    assert lines(before) == [b"one\n"]
    append(log, b"two\n")
    log.rename(log.with_name("app.log.1"))
    append(log, b"three\n")
    assert settled(follow(log, before.position)) == [b"two\n", b"three\n"]


def test_older_file_that_goes_away_meanwhile_hides_no_other(
    follow: Follow, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, b"1\n")
    first = follow(log, from_start=True)
    assert lines(first) == [b"1\n"]
    first.close()
    append(log, b"2\n")
    log.rename(log.with_suffix(".log.1"))
    append(log, b"3\n")
    going = log.with_suffix(".log.2")
    going.write_bytes(b"0\n")
    looked = Path.stat

    def stat(path: Path, **options: Any) -> os.stat_result:
        found = looked(path, **options)
        if path == going:
            # Somebody compresses it between one look and the next.
            going.unlink()
        return found

    monkeypatch.setattr(Path, "stat", stat)
    assert settled(follow(log, first.position)) == [b"2\n", b"3\n"]


def test_line_that_is_read_again_has_the_same_origin(follow: Follow, log: Path) -> None:
    append(log, b"one\ntwo\n")
    before = follow(log, from_start=True)
    position = before.position
    first = before.read()
    assert follow(log, position).read() == first


def test_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        LogFile(tmp_path)


@contextmanager
def without_rights() -> Iterator[None]:
    """As a user who may not read everything, also where tests are run by one who may."""
    mighty = os.geteuid() == 0
    if mighty:
        os.seteuid(65_534)
    try:
        yield
    finally:
        if mighty:
            os.seteuid(0)


def test_file_that_may_not_be_read_is_refused(follow: Follow, log: Path) -> None:
    log.write_bytes(b"secret\n")
    log.chmod(0)
    with without_rights(), pytest.raises(UsageError, match=r"cannot be read \(Permission denied"):
        follow(log)


def test_pipe_is_refused_and_not_waited_for(follow: Follow, log: Path) -> None:
    os.mkfifo(log)
    with pytest.raises(UsageError, match="is no regular file"):
        follow(log)


def test_file_that_cannot_be_read_later_is_said_so_and_looked_for_again(
    follow: Follow, log: Path
) -> None:
    file = follow(log)
    assert (lines(file), file.trouble) == ([], ""), "one that is not there yet is no trouble"
    log.mkdir()
    assert (lines(file), file.trouble) == ([], "Is a directory")
    log.rmdir()
    append(log, b"one\n")
    assert (lines(file), file.trouble) == ([b"one\n"], "")


def test_damaged_state_is_one_sentence(tmp_path: Path) -> None:
    state = tmp_path / "places.json"
    state.write_text("{")
    with pytest.raises(UsageError, match="remove it to begin anew"):
        LogPositions(state)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.binary(max_size=30), st.sampled_from(["look", "rename", "restart"])),
        max_size=30,
    )
)
def test_whatever_is_written_comes_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[bytes | str]
) -> None:
    log = tmp_path_factory.mktemp("logs") / "app.log"
    log.touch()
    file = LogFile(log, from_start=True)
    written, found, rotations = b"", b"", 0
    for step in steps:
        if isinstance(step, bytes):
            append(log, step + b"\n")
            written += step + b"\n"
        elif step == "look":
            found += b"".join(lines(file))
        elif step == "restart":
            file.close()
            file = LogFile(log, file.position)
        else:
            rotated = log.with_name(f"app.log.{rotations}")
            log.rename(rotated)
            os.utime(rotated, ns=(rotations, rotations))
            rotations += 1
            log.touch()
    for _ in range(rotations + 1):
        found += b"".join(settled(file))
    file.close()
    # Lines without anything in them are not handed out.
    assert found.translate(None, b"\r\n") == written.translate(None, b"\r\n")
    assert isinstance(file.position, LogPosition)


def test_places_of_many_files_are_kept_at_the_same_time(tmp_path: Path) -> None:
    state = tmp_path / "places.json"
    positions, last = LogPositions(state), 100

    def keep_on(number: int) -> None:
        for offset in range(last + 1):
            positions.keep(Path(f"{number}.log"), LogPosition(1, number, offset, ""))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(keep_on, range(8)))
    kept = [LogPositions(state).get(Path(f"{number}.log")) for number in range(8)]
    assert [position.offset for position in kept if position] == [last] * 8
    assert list(tmp_path.iterdir()) == [state]
