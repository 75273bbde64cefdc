"""Files: what is written is read, and every way to be wrong has its sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.manifest.cells import MANIFEST, OPERATOR

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, NodeId
from quorumcast.crypto.identity import Identity
from quorumcast.manifest.build import next_epoch
from quorumcast.manifest.files import (
    SignedManifest,
    parse_manifest,
    read_identity,
    read_manifest,
    sign_manifest,
    write_identity,
    write_manifest,
)
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy

ALICE = Identity(NodeId("alice"), b"a" * 32)
SIGNED = sign_manifest(MANIFEST, OPERATOR)
DATA = msgspec.json.encode(SIGNED)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cell.json"
    write_manifest(path, SIGNED)
    return path


def altered(change: Callable[[dict[str, Any]], object]) -> bytes:
    content = json.loads(DATA)
    change(content)
    return json.dumps(content).encode()


def signed_anyway(**changes: Any) -> bytes:
    """An operator's signature under a manifest that `sign_manifest` would refuse."""
    manifest = msgspec.structs.replace(MANIFEST, **changes)
    payload = b"quorumcast manifest 1\0" + msgspec.msgpack.encode(manifest, order="deterministic")
    return msgspec.json.encode(SignedManifest(manifest, OPERATOR.sign(payload).signature.hex()))


# --------------------------------------------------------------- manifests


def test_manifest_written_is_read(file: Path) -> None:
    assert read_manifest(file) == MANIFEST
    assert read_manifest(str(file), operator=OPERATOR.verify_key) == MANIFEST


def test_manifest_file_is_for_people(file: Path) -> None:
    text = file.read_text()
    assert '\n    "cell": "demo",\n' in text
    assert file.stat().st_mode & 0o777 == 0o644 & ~current_umask()


def test_manifest_has_terms_of_logs_only_if_some_are_kept(file: Path) -> None:
    """Otherwise what was signed before there were such terms would not hold any more."""
    assert "kept_terms" not in json.loads(DATA)["manifest"]
    ordered = ChannelEntry(Channel("a"), Policy.named("total", journal=True))
    following = next_epoch(next_epoch(MANIFEST, channels=(ordered,)), channels=())
    write_manifest(file, sign_manifest(following, OPERATOR))
    assert read_manifest(file) == following
    terms = json.loads(file.read_text())["manifest"]["kept_terms"]
    assert terms == [{"log": "byzantine", "durable": True, "pipeline": 8, "checkpoint": 64}]


def test_manifest_written_over_an_older_one_replaces_it(file: Path) -> None:
    write_manifest(file, sign_manifest(next_epoch(MANIFEST), OPERATOR))
    assert read_manifest(file).epoch == 2
    assert sorted(path.name for path in file.parent.iterdir()) == ["cell.json", "epochs"]
    assert read_manifest(file.parent / "epochs" / "1.json") == MANIFEST


def test_manifest_of_another_cell_is_replaced_and_not_kept(file: Path) -> None:
    other = msgspec.structs.replace(MANIFEST, cell="other", epoch=2)
    write_manifest(file, sign_manifest(other, OPERATOR))
    assert [path.name for path in file.parent.iterdir()] == ["cell.json"]


def test_manifest_reformatted_keeps_its_signature() -> None:
    content = json.loads(DATA)
    content["manifest"] = dict(reversed(content["manifest"].items()))
    assert parse_manifest(json.dumps(content, indent=7).encode()) == MANIFEST


def drop_client(content: dict[str, Any]) -> None:
    content["manifest"]["clients"].pop()


def change_limit(content: dict[str, Any]) -> None:
    content["manifest"]["channels"][0]["policy"]["limits"]["window"] += 1


def swap_brokers(content: dict[str, Any]) -> None:
    content["manifest"]["brokers"].reverse()


ALTERATIONS: list[Callable[[dict[str, Any]], object]] = [
    lambda content: content["manifest"].update(cell="demo2"),
    lambda content: content["manifest"].update(epoch=2),
    lambda content: content["manifest"].update(f=0),
    lambda content: content["manifest"].update(digest="blake3"),
    lambda content: content["manifest"].update(mac="hmac-sha256"),
    lambda content: content["manifest"].update(epoch=2**64),
    lambda content: content["manifest"]["brokers"][0].update(port=7),
    lambda content: content["manifest"]["brokers"][0].update(certificate="x"),
    lambda content: content["manifest"]["channels"][0].update(publishers=["*"]),
    lambda content: content["manifest"]["channels"][0]["policy"].update(alpha=101),
    drop_client,
    change_limit,
    swap_brokers,
    lambda content: content.update(signature="00" * 64),
    lambda content: content.update(signature="not hex"),
    lambda content: content.update(signature=""),
]


@pytest.mark.parametrize("change", ALTERATIONS)
def test_manifest_altered_after_signing_is_refused(
    change: Callable[[dict[str, Any]], object],
) -> None:
    with pytest.raises(UsageError) as caught:
        parse_manifest(altered(change), source="cell.json")
    assert str(caught.value) == (
        "cell.json was altered after its operator signed it; get it anew from the operator"
    )


def test_manifest_signed_by_another_key_under_the_operators_name_is_refused() -> None:
    mallory = Identity(OPERATOR.name, b"m" * 32)
    theirs = msgspec.structs.replace(MANIFEST, operator=mallory.verify_key)
    data = msgspec.json.encode(sign_manifest(theirs, mallory))
    assert parse_manifest(data) == theirs, "whoever knows no operator must believe the first"
    with pytest.raises(UsageError, match=r"cell.json is from another operator than this node know"):
        parse_manifest(data, source="cell.json", operator=OPERATOR.verify_key)


def test_manifest_of_a_known_epoch_is_refused() -> None:
    data = msgspec.json.encode(sign_manifest(next_epoch(MANIFEST), OPERATOR))
    assert parse_manifest(data, newer_than=1).epoch == 2
    for known in (2, 3):
        with pytest.raises(UsageError, match=rf"is epoch 2, but epoch {known} is already known; "):
            parse_manifest(data, newer_than=known)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"f": 2},
            r"cell.json does not describe a valid cell: .* needs 7 brokers",
        ),
        ({"brokers": MANIFEST.brokers[:3]}, r"cell.json does not describe a valid cell: .*has 3"),
        ({"mac": "hmac-md5"}, r"cell.json does not describe a valid cell: .*is broken"),
    ],
)
def test_manifest_signed_but_unsound_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_manifest(signed_anyway(**changes), source="cell.json")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda content: content.pop("signature"), "signature"),
        (lambda content: content["manifest"].pop("f"), "`f`"),
        (lambda content: content["manifest"].update(f="one"), r"\$.manifest.f"),
        (lambda content: content["manifest"].update(colour="red"), "unknown field `colour`"),
        (lambda content: content["manifest"]["brokers"][0].update(x=1), "unknown field `x`"),
        (
            lambda content: content["manifest"]["channels"][0]["policy"]["limits"].update(x=1),
            "unknown field `x`",
        ),
        (
            lambda content: content["manifest"]["channels"][0]["policy"].update(broadcast="gossip"),
            "'gossip'",
        ),
    ],
)
def test_manifest_with_wrong_fields_is_refused_and_names_the_field(
    change: Callable[[dict[str, Any]], object], field: str
) -> None:
    sentence = rf"^cell.json is not a manifest of this version \(.*{field}.*\); get it anew"
    with pytest.raises(UsageError, match=sentence):
        parse_manifest(altered(change), source="cell.json")


@pytest.mark.parametrize("data", [b"", b"cell: demo", DATA[:-1], b"\xff\xfe"])
def test_manifest_that_is_not_json_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"^cell.json is not JSON, so it is no manifest; name"):
        parse_manifest(data, source="cell.json")


def test_manifest_nested_without_end_is_refused() -> None:
    data = b'{"manifest":{"clients":' + b"[" * 100_000
    with pytest.raises(UsageError, match=r"^cell.json is not "):
        parse_manifest(data, source="cell.json")


@settings(max_examples=300)
@given(st.integers(0, len(DATA) - 1), st.binary(max_size=3))
def test_manifest_mutated_anywhere_means_the_same_or_is_refused(at: int, patch: bytes) -> None:
    data = DATA[:at] + patch + DATA[at + len(patch) :]
    try:
        manifest = parse_manifest(data)
    except UsageError:
        return
    assert manifest == MANIFEST


def test_sign_by_anyone_but_the_operator_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'alice' is not the operator .* names; sign it with"):
        sign_manifest(MANIFEST, ALICE)


def test_sign_of_an_unsound_manifest_is_refused() -> None:
    with pytest.raises(UsageError, match="makes no sense"):
        sign_manifest(msgspec.structs.replace(MANIFEST, f=-1), OPERATOR)


def test_signature_of_the_same_bytes_for_another_purpose_is_refused() -> None:
    bare = OPERATOR.sign(msgspec.msgpack.encode(MANIFEST, order="deterministic"))
    with pytest.raises(UsageError, match="was altered"):
        parse_manifest(msgspec.json.encode(SignedManifest(MANIFEST, bare.signature.hex())))


# -------------------------------------------------------------- identities


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_identity_written_is_read_and_private(tmp_path: Path) -> None:
    path = tmp_path / "alice.json"
    write_identity(path, ALICE)
    read = read_identity(path)
    assert (read.name, read.seed) == (ALICE.name, ALICE.seed)
    assert json.loads(path.read_text()) == {"name": "alice", "seed": "61" * 32}
    assert path.stat().st_mode & 0o777 == 0o600


def test_identity_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "alice.json"
    write_identity(path, ALICE)
    with pytest.raises(UsageError, match=r"alice.json already exists .* move it away, or name"):
        write_identity(path, Identity.generate(ALICE.name))
    assert read_identity(path).seed == ALICE.seed


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o601])
def test_identity_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "alice.json"
    write_identity(path, ALICE)
    path.chmod(mode)
    with pytest.raises(UsageError) as caught:
        read_identity(path)
    assert str(caught.value) == (
        f"others than its owner have access to the identity {path}; run: chmod 600 {path}"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "alice",
        "[]",
        '{"name": "alice"}',
        '{"name": "alice", "seed": 5}',
        '{"name": "alice", "seed": "xyz"}',
        '{"name": "alice", "seed": "6161"}',
        '{"name": "", "seed": "' + "61" * 32 + '"}',
        '{"name": "' + "a" * 129 + '", "seed": "' + "61" * 32 + '"}',
        '{"name": "alice", "seed": "' + "61" * 32 + '", "more": 1}',
    ],
)
def test_identity_of_nonsense_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "alice.json"
    path.touch(mode=0o600 if text else 0o644)
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_identity(path)
    assert str(caught.value) == (
        f"{path} is not an identity (JSON with a name and a seed of 32 bytes in hex); "
        "name a file NAME.identity that 'quorumcast init' made"
    )


# -------------------------------------------------------------------- disk


READERS = [("manifest", read_manifest), ("identity", read_identity)]
WRITERS: list[tuple[str, Callable[[Path], None]]] = [
    ("manifest", lambda path: write_manifest(path, SIGNED)),
    ("identity", lambda path: write_identity(path, ALICE)),
]


@pytest.mark.parametrize(("kind", "read"), READERS)
def test_read_missing_file_is_refused(
    tmp_path: Path, kind: str, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "gone"
    helps = {"manifest": "make one with 'quorumcast init'", "identity": "put back the file"}
    with pytest.raises(UsageError, match=f"^there is no {kind} at {path}; {helps[kind]}"):
        read(path)


@pytest.mark.parametrize(("cells", "helps"), [(1, "did you mean the one in"), (2, "make one with")])
def test_read_missing_manifest_beside_a_single_cell_names_it(
    tmp_path: Path, cells: int, helps: str
) -> None:
    for name in range(cells):
        (tmp_path / f"cell-{name}").mkdir()
        write_manifest(tmp_path / f"cell-{name}" / "manifest.json", SIGNED)
    with pytest.raises(UsageError, match=helps) as caught:
        read_manifest(tmp_path / "manifest.json")
    assert (f"(-m {tmp_path / 'cell-0'})" in str(caught.value)) == (cells == 1)


@pytest.mark.parametrize(("kind", "read"), READERS)
def test_read_directory_is_refused(
    tmp_path: Path, kind: str, read: Callable[[Path], object]
) -> None:
    with pytest.raises(UsageError, match=f"^{tmp_path} is a directory; name the {kind} file in it"):
        read(tmp_path)


@pytest.mark.parametrize(("kind", "read"), READERS)
@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (PermissionError(13, "Permission denied"), "^this user may not read the {kind} {path}; "),
        (OSError(5, "Input/output error"), r"{path} cannot be read \(Input/output error\); name"),
    ],
)
def test_read_that_the_system_refuses_is_refused(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    read: Callable[[Path], object],
    error: OSError,
    sentence: str,
) -> None:
    # Raised by hand: whoever runs the tests as root may read everything.
    def refuse(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UsageError, match=sentence.format(kind=kind, path=file)):
        read(file)


@pytest.mark.parametrize(("kind", "write"), WRITERS)
def test_write_into_a_missing_directory_is_refused(
    tmp_path: Path, kind: str, write: Callable[[Path], None]
) -> None:
    with pytest.raises(UsageError, match=f"no directory {tmp_path}/gone for the {kind} x; make it"):
        write(tmp_path / "gone" / "x")


@pytest.mark.parametrize(("kind", "write"), WRITERS)
def test_write_below_a_file_is_refused(
    file: Path, kind: str, write: Callable[[Path], None]
) -> None:
    with pytest.raises(UsageError, match=rf"the {kind} .* cannot be written \(Not a directory\)"):
        write(file / "x")


def test_write_manifest_onto_a_directory_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "cell").mkdir()
    with pytest.raises(UsageError, match="cell is a directory; name a file for the manifest"):
        write_manifest(tmp_path / "cell", SIGNED)
    assert [path.name for path in tmp_path.iterdir()] == ["cell"]


@pytest.mark.parametrize(("kind", "write"), WRITERS)
def test_write_that_the_system_refuses_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, write: Callable[[Path], None]
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UsageError, match=f"^this user may not write the {kind} {tmp_path}/x; "):
        write(tmp_path / "x")
