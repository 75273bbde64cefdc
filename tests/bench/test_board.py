"""The board: counters that several processes see, and whose of them count."""

from pathlib import Path

from quorumcast.bench.board import Board
from quorumcast.bench.plan import BenchPlan


def test_board_second_view_sees_what_the_first_wrote(tmp_path: Path) -> None:
    plan = BenchPlan(publishers=2, subscribers=2)
    board = Board(tmp_path / "board", plan, create=True)
    other = Board(tmp_path / "board", plan)
    board.set_posted(1, 7)
    board.add_accepted(0, 1, 5, 2)
    board.add_accepted(1, 1, 4, 2)
    assert other.posted(1) == 7
    assert other.accepted(0) == (5, 2)
    assert other.accepted_by_all(1) == 4
    assert other.accepted_by_all(0) == 0
    for view in (board, other):
        view.close()


def test_board_guest_paces_itself_and_counts_for_nothing(tmp_path: Path) -> None:
    plan = BenchPlan(guest="publisher")
    board = Board(tmp_path / "board", plan, create=True)
    guest = plan.lane(plan.publishers, 0)
    board.set_posted(0, 10)
    board.set_posted(guest, 99)
    board.add_accepted(0, 0, 10, 10)
    board.add_accepted(0, guest, 50, 50)
    assert board.accepted_by_all(guest) == 50
    assert board.accepted(0) == (10, 10)
    assert not board.complete()
    board.set_finished(0)
    assert board.complete()
    board.close()
