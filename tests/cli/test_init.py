"""`quorumcast init`: what it makes, what it replaces and what it refuses."""

import json
from pathlib import Path

import pytest
from tests.cli.shell import answer, sentence

from quorumcast.cli.main import main


def test_init_f_too_large_for_n(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = sentence(capsys, "init", tmp_path / "x", "--brokers", 4, "--f", 2)
    assert "needs 7 brokers to tolerate f=2" in line
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("brokers", "channels", "f", "needed"),
    [
        (3, ["a:direct"], 1, None),
        (3, ["a:total-crash", "b:direct-crash"], 1, None),
        (4, ["a:direct", "b:total"], 1, None),
        (3, ["a:direct", "b:total"], 0, 4),
        (2, [], 0, 4),
        (2, ["a:direct"], 0, 3),
    ],
)
def test_init_tolerates_the_most_that_its_channels_allow(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    brokers: int,
    channels: list[str],
    f: int,
    needed: int | None,
) -> None:
    options = [word for channel in channels for word in ("--channel", channel)]
    command = ["init", tmp_path / "x", "--brokers", brokers, "--digest", "sha256", "--json"]
    assert main([*map(str, command), *options]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["f"] == f
    warning = f"warning: no broker may fail or lie: with these channels that takes {needed} brokers"
    assert captured.err.strip() == (warning if needed else "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--channel", "orders:gossip"], "there is no policy 'gossip'"),
        (["--channel", "orders:ab+history:many"], "alpha must be a number"),
        (["--channel", "orders:ab:10"], "'ab' has no alpha; did you mean ab+history:10?"),
        (["--channel", "orders:brb:10"], "'brb' has no alpha; write orders:brb"),
        (["--channel", "orders:total:10"], "'total' has no alpha; write orders:total"),
        (["--channel", "orders:ab+durable"], "'ab' keeps no publications on disk; use 'total+"),
        (["--channel", "orders:total+journal"], "on disk; write 'total+durable'"),
        (["--channel", "orders:total+durable+durable"], "says twice what is kept on disk"),
        (["--channel", "orders:gossip+durable"], "there is no policy 'gossip'"),
        (["--channel", "a:ab:1:x:y:z"], "says too much about a channel"),
        (["--channel", "a:brb::nobody"], "gives rights to 'nobody'"),
        (["--retain", "everything"], "'ab+history' is kept in the memory of brokers, which cannot"),
        (["--retain", "soon"], "--retain takes an age such as 7d"),
        (
            ["--retain", "500"],
            "--retain 500 means 500 publications, and brokers need at least 2048",
        ),
        (["--digest", "crc"], "unknown digest 'crc'"),
        (["--digest", "md5"], "make a cell for that with 'init --reproduce-freeman'"),
        (["--mac", "hmac-md5"], "make a cell for that with 'init --reproduce-freeman'"),
        (["--mac", "none"], "unknown MAC 'none': the manifest may name blake2b"),
        (["--clients", "operator"], "no node can be called 'operator'"),
        (["--clients", "alice,alice"], "appears twice"),
        (["--base-port", "65534"], "choose one from 1 to 65535"),
        (["--brokers", "0"], "has no brokers"),
        (["--brokers", "four"], "Invalid value for '--brokers'"),
        (["--nonsense"], "No such option"),
    ],
)
def test_init_wrong_option(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], expected: str
) -> None:
    assert expected in sentence(capsys, "init", tmp_path / "x", *arguments)


def test_init_retain_holds_for_all_its_channels(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    channels = ["--channel", "a:total+durable", "--channel", "b:brb"]
    place = ["init", tmp_path / "x", "--digest", "sha256", *channels]
    made = answer(capsys, *place, "--retain", "7d", "--retain", "1GB")
    assert made["retention"] == {"a": "7 days, 1 GB", "b": "7 days, 3,906,250 publications, 1 GB"}
    listed = answer(capsys, "channel", "list", "-m", tmp_path / "x")["channels"]
    assert {channel["name"]: channel["retention"] for channel in listed} == made["retention"]


def test_init_existing_cell_needs_force(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["init", str(tmp_path), "--digest", "sha256"]) == 0
    before = (tmp_path / "alice.identity").read_text()
    capsys.readouterr()
    assert "--force" in sentence(capsys, "init", tmp_path)
    assert (tmp_path / "alice.identity").read_text() == before
    assert main(["init", str(tmp_path), "--force", "--digest", "sha256", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["brokers"]["broker-1"] == "127.0.0.1:7100"
    assert (tmp_path / "alice.identity").read_text() != before


def test_init_force_keeps_the_old_cell_with_all_that_its_brokers_left(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cell = tmp_path / "cell"
    init = ["init", str(cell), "--force", "--digest", "sha256"]
    assert main(init) == 0
    assert capsys.readouterr().err == ""
    kept = [cell / name / "file" for name in ("data", "epochs", "evidence", "logs")]
    for path in kept:
        path.parent.mkdir()
        path.write_text("old")
    assert main(init) == 0
    old = cell / "replaced-1"
    assert capsys.readouterr().err == f"the cell that was there is now in {old}\n"
    assert [path for path in cell.iterdir() if path.is_dir()] == [old]
    assert all((old / path.relative_to(cell)).read_text() == "old" for path in kept)
    assert answer(capsys, "epoch", "show", "-m", old)["cell"] == "cell"
    assert (cell / ".gitignore").exists()


def test_init_hides_a_cell_from_git(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "README").write_text("")
    for name, expected in (("cell", "*"), ("project", "*.identity")):
        assert main(["init", str(tmp_path / name), "--digest", "sha256"]) == 0
        assert (tmp_path / name / ".gitignore").read_text().splitlines()[0] == expected
