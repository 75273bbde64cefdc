"""A package outside ours: `acme` of docs/extending.md, with a protocol, a store and a transport."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.runtime.world import alice_and_bob, run

from quorumcast.broadcast.protocol import BroadcastProtocol
from quorumcast.core.errors import UsageError
from quorumcast.core.plugins import Plugin, Registry
from quorumcast.manifest.policy import PROTOCOLS, Policy, ProtocolTerms
from quorumcast.runtime.broker.broker import BrokerSettings, run_broker
from quorumcast.runtime.links.schemes import SCHEMES
from quorumcast.runtime.store.contract import STORES
from quorumcast.sim.cell.known_bad.catalogue import VARIANTS
from quorumcast.sim.cell.plan import CellPlan
from quorumcast.sim.kernel.known_bad import mistaken
from quorumcast.sim.systems import perform, run_scenario
from quorumcast.testing import LocalCluster

PAGE = Path(__file__).parents[2] / "docs/extending.md"
MODULE = re.compile(r"^```python\n# (acme/\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GROUP = re.compile(r'\[project\.entry-points\."([\w.]+)"\]\n(\w+) = "([\w.:]+)"')


def install(directory: Path, name: str, entry_points: str) -> None:
    """A package as pip leaves it, without pip."""
    info = directory / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package of the page, installed."""
    site, page = tmp_path / "site", PAGE.read_text(encoding="utf-8")
    for path, source in MODULE.findall(page):
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(source)
    groups = GROUP.findall(page)
    assert len(groups) == len(MODULE.findall(page)) == 3
    lines = (f"[{group}]\n{name} = {value}\n" for group, name, value in groups)
    install(site, "acme", "".join(lines))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    monkeypatch.syspath_prepend(site)
    for registry in (PROTOCOLS, STORES, SCHEMES):
        monkeypatch.setattr(registry, "_loaded", {})
    yield site
    for name in [name for name in sys.modules if name.split(".")[0] == "acme"]:
        del sys.modules[name]


@pytest.mark.runtime
def test_cell_with_parts_of_another_package_delivers_and_survives_a_crash_of_all(
    acme: Path, tmp_path: Path
) -> None:
    async def publish(cluster: LocalCluster, channel: str, payload: bytes) -> list[bytes]:
        async with (
            alice_and_bob(cluster) as (alice, bob),
            bob.subscribe(channel, start="earliest") as read,
            alice.publisher(channel) as out,
        ):
            await out.publish(payload)
            await out.flush()
            got = [(await anext(read)).payload]
            while got[-1] != payload:
                got.append((await anext(read)).payload)
            return got

    sockets = tmp_path / "s"
    sockets.mkdir()
    channels: dict[str, str | Policy] = {
        "orders": "gossip",
        "kept": Policy.parse("total+durable"),
    }
    with LocalCluster(channels=channels, host=f"unix+{sockets}", store="lines") as cluster:
        assert run(publish(cluster, "orders", b"one")) == [b"one"]
        assert run(publish(cluster, "kept", b"two")) == [b"two"]
        for name in cluster.brokers:
            cluster.kill(name)
        for name in cluster.brokers:
            cluster.start_broker(name)
        assert run(publish(cluster, "kept", b"three")) == [b"two", b"three"]
        ports = {str(broker.port) for broker in cluster.manifest.brokers}
        assert {path.name for path in sockets.iterdir()} == ports
        stores = sorted(path.name for path in (cluster.directory / "data").glob("*.store*"))
        assert stores == [f"{name}.store-lines" for name in cluster.brokers]


def test_protocol_of_another_package_is_judged_by_the_simulator(acme: Path) -> None:
    outcome = run_scenario(2, "gossip")
    assert (outcome.policy, outcome.violations) == ("gossip", [])


def test_protocol_of_another_package_that_forwards_second_contents_is_caught(acme: Path) -> None:
    variant = next(one for one in VARIANTS if one.name == "second-contents")
    plan = variant.attack(1)
    assert isinstance(plan, CellPlan)
    gossip = Policy.named("gossip", limits=plan.policy.limits)
    channels = tuple(replace(channel, policy=gossip) for channel in plan.channels)
    with mistaken(variant.patches):
        outcome = perform(replace(plan, policy=gossip, channels=channels))
    assert "One story" in {found.property for found in outcome.violations}


def test_policy_of_another_package_names_it_and_keeps_the_promise_of_its_row(acme: Path) -> None:
    policy = Policy.parse("gossip+journal")
    assert (policy.name, policy.like, policy.title) == ("gossip", "ab", "gossip+journal")
    assert policy.may_split
    with pytest.raises(UsageError, match="no policy 'gosip'; did you mean 'gossip'"):
        Policy.parse("gosip")
    with pytest.raises(UsageError, match="no store 'line'; did you mean 'lines'"):
        STORES.load("line")


def test_broker_without_the_protocol_of_a_channel_says_so(tmp_path: Path) -> None:
    missing = Policy(
        protection=Policy.named("ab").protection,
        broadcast=Policy.named("ab").broadcast,
        protocol="missing",
    )
    cluster = LocalCluster(channels={"orders": missing}, directory=tmp_path)
    settings = BrokerSettings(
        manifest=cluster.manifest_path, identity=cluster.identity_path("broker-1")
    )
    with pytest.raises(UsageError, match="'orders' cannot be served here: there is no policy"):
        asyncio.run(run_broker(settings))
    cluster.stop()


@pytest.mark.parametrize("like", ["total", "chain+history"])
def test_protocol_that_replaces_what_cannot_be_replaced_is_refused(like: str) -> None:
    built_in = Policy.named(like)
    policy = Policy(protection=built_in.protection, broadcast=built_in.broadcast, protocol="theirs")
    with pytest.raises(UsageError, match="'theirs' cannot replace"):
        policy.check()


GOOD = BroadcastProtocol(contract=1, like="ab", carrier=lambda stream, context: None)  # type: ignore[arg-type,return-value]
OLD = BroadcastProtocol(contract=0, like="ab", carrier=GOOD.carrier)
WRONG = "no protocol"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("OLD", "keeps version 0 of the contract, and this version of Quorumcast version 1"),
        ("WRONG", "must be a ProtocolTerms, not a str"),
        ("ABSENT", "cannot be imported .AttributeError"),
    ],
)
def test_part_that_does_not_fit_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, sentence: str
) -> None:
    install(tmp_path, "theirs", f"[qc.tests]\ntheirs = {__name__}:{value}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    registry = Registry("qc.tests", "policy", ProtocolTerms, 1, {"ab": ""})
    with pytest.raises(UsageError, match=sentence):
        registry.load("theirs")


def test_part_that_two_packages_bring_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        install(tmp_path / name, name, f"[qc.tests]\ntheirs = {name}:PART\nab = {name}:PART\n")
        monkeypatch.syspath_prepend(tmp_path / name)
    registry = Registry("qc.tests", "policy", Plugin, 1, {"ab": ""})
    with pytest.raises(UsageError, match=r"in several installed packages .one:PART, two:PART"):
        registry.load("theirs")
    assert registry.names() == ("ab", "theirs")


def test_command_that_uses_built_in_parts_searches_for_no_others() -> None:
    script = (
        "import sys; from quorumcast.manifest.policy import Policy; Policy.parse('total+durable');"
        "from quorumcast.runtime.links.schemes import SCHEMES; SCHEMES.load('tcp');"
        "sys.exit('importlib.metadata' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
