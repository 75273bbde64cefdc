"""`quorumcast pipeline workload …`: workloads prepared, generated and described on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from quorumcast.cli.common import console, facts_table, print_json, table
from quorumcast.cli.options import Commands, JsonOption, MasterOption
from quorumcast.cli.pipeline.sentences import sentences
from quorumcast.cli.progress import ProgressDisplay
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.bench.workload import WorkloadHeader
    from quorumcast.pipeline.workload.describe import Description
    from quorumcast.pipeline.workload.recipes import Recipe

PREPARE_EXAMPLE = "pipeline workload prepare RC_2007-10.bz2 --recipe reddit -o reddit"
GENERATE_EXAMPLE = "pipeline workload generate --like reddit -o reddit"
DESCRIBE_EXAMPLE = "pipeline workload describe reddit --picture reddit.svg"

PLAIN, REDDIT, PULSARCAST = "plain", "reddit", "pulsarcast"
LIKE = ("reddit", "dt1", "dt2")
#: Topics in the table.
SHOWN = 30


class NewWorkload(msgspec.Struct, kw_only=True):
    """The options of every command that makes a workload."""

    output: Annotated[Path, typer.Option("--output", "-o", help="The workload's directory.")]
    nodes: Annotated[int, typer.Option(help="Nodes, which users are mapped to.")] = 100
    mean: Annotated[float, typer.Option(help="Subscriptions of a node, if it may choose.")] = 5.0
    exponent: Annotated[float, typer.Option(help="Of zipf (1) or powerlaw (2.2).")] = 0.0
    seed: Annotated[int, typer.Option(help="Everything that is drawn follows from it.")] = 1
    partitions: Annotated[int, typer.Option(help="Files of events; 0 chooses.")] = 0
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the workload that is there.")
    ] = False
    master: MasterOption = None


app = Commands(
    no_args_is_help=True, help="Make workloads that 'bench' and 'sim' replay, and look at them."
)


@app.callback()
def _main() -> None:
    """Make workloads that 'bench' and 'sim' replay, and look at them."""


@app.command(example=PREPARE_EXAMPLE)
@sentences()
def prepare(
    sources: Annotated[list[str], typer.Argument(help="Files or directories of one data set.")],
    made: NewWorkload,
    recipe: Annotated[
        str,
        typer.Option(
            help="'plain': name the columns. 'reddit': comments as the archives have them. "
            "'pulsarcast': a workload as Pulsarcast's author published it."
        ),
    ] = PLAIN,
    format_: Annotated[
        str, typer.Option("--format", help="json (an object a line), csv or parquet; by the name.")
    ] = "",
    author: Annotated[str, typer.Option(help="plain: the column of users.")] = "author",
    topic: Annotated[str, typer.Option(help="plain: the column of topics; none draws them.")] = "",
    time: Annotated[str, typer.Option(help="plain: the column of times.")] = "",
    body: Annotated[str, typer.Option(help="plain: the column of contents.")] = "",
    unknown: Annotated[
        list[str] | None, typer.Option(help="plain: a name of unknown users; may be repeated.")
    ] = None,
    sample: Annotated[int, typer.Option(help="Rows to take; 0: all, or the recipe's.")] = 0,
    topics: Annotated[int, typer.Option(help="Most popular ones to keep, or to draw.")] = 0,
    users: Annotated[
        str, typer.Option(help="How users fall on nodes: uniform, zipf, normal, powerlaw.")
    ] = "uniform",
    topic_distribution: Annotated[
        str, typer.Option(help="How drawn topics fall on events, likewise.")
    ] = "zipf",
    subscriptions: Annotated[
        str,
        typer.Option(help="'authors' of a topic subscribe to it, or nodes choose topics likewise."),
    ] = "authors",
    json_: JsonOption = False,
) -> None:
    """Turn a data set into a workload: clean, sample, map users to nodes, draw subscriptions."""
    from quorumcast.pipeline.session import spark_session
    from quorumcast.pipeline.workload.files import new_workload
    from quorumcast.pipeline.workload.prepare import prepare as run_prepare
    from quorumcast.pipeline.workload.published import prepare_published
    from quorumcast.pipeline.workload.recipes import FORMATS, format_of
    from quorumcast.pipeline.workload.steps import WorkloadSettings

    for source in sources:
        if "://" not in source and not Path(source).exists():
            raise UsageError(f"there is no {source}; name a file or directory")
    chosen = _recipe(recipe, author, topic, time, body, unknown)
    kind = FORMATS[0] if chosen is None else format_of(
        sources, format_ or (FORMATS[0] if recipe == REDDIT else "")
    )  # fmt: skip
    settings = WorkloadSettings(
        nodes=made.nodes,
        seed=made.seed,
        sample=sample,
        topics=topics,
        users=users,
        drawn_topics=topic_distribution,
        subscriptions=subscriptions,
        mean=made.mean,
        exponent=made.exponent,
        partitions=made.partitions,
    )
    if chosen is not None:
        settings.check(chosen)
    elif made.partitions < 0:
        raise UsageError("--partitions is 0 or more")
    place = new_workload(made.output, overwrite=made.overwrite, sources=sources)
    with place, ProgressDisplay("starting Spark") as shown:
        spark = spark_session("workload", master=made.master)
        shown("reading, cleaning and writing")
        if chosen is None:
            header = prepare_published(
                spark, sources, made.output, seed=made.seed, partitions=made.partitions
            )
        else:
            header = run_prepare(spark, sources, kind, chosen, settings, made.output)
    _tell(header, made.output, json_)


def _recipe(
    name: str, author: str, topic: str, time: str, body: str, unknown: list[str] | None
) -> Recipe | None:
    """The named columns; None for a recipe that needs none."""
    from quorumcast.pipeline.workload import recipes

    if name == PULSARCAST:
        return None
    if name == REDDIT:
        return recipes.REDDIT
    if name == PLAIN:
        return recipes.Recipe(
            name=PLAIN,
            author=author,
            topic=topic,
            time=time,
            body=body,
            unknown=tuple(unknown or ()),
        )
    raise UsageError(f"there is no recipe {name!r}; choose one of {PLAIN}, {REDDIT}, {PULSARCAST}")


@app.command(example=GENERATE_EXAMPLE)
@sentences()
def generate(
    made: NewWorkload,
    like: Annotated[
        str,
        typer.Option(
            help="'reddit': Pulsarcast's workload. 'dt1', 'dt2': PubliyPrime's. Otherwise say "
            "--topics and the rest."
        ),
    ] = "",
    events: Annotated[int, typer.Option(help="0: 17,611 like reddit, otherwise 10,000.")] = 0,
    topics: Annotated[int, typer.Option(help="Topics, where nothing is imitated.")] = 20,
    distribution: Annotated[
        str, typer.Option(help="Popularity of topics: uniform, zipf, normal, powerlaw.")
    ] = "zipf",
    subscriptions: Annotated[
        str, typer.Option(help="Popularity of topics with subscribers, likewise.")
    ] = "zipf",
    rate: Annotated[float, typer.Option(help="Events per second, of all nodes.")] = 100.0,
    size: Annotated[int, typer.Option(help="Bytes per event.")] = 200,
    json_: JsonOption = False,
) -> None:
    """Make a workload of a known shape, without any data.

    Exit code 1 if subscriptions by content do not match as densely as they should, within 1 %.
    """
    from quorumcast.pipeline.session import spark_session
    from quorumcast.pipeline.workload import content, shapes
    from quorumcast.pipeline.workload.files import (
        new_workload,
        write_content,
        write_generated,
    )

    if like and like not in LIKE:
        raise UsageError(f"there is no {like!r} to imitate; choose one of {', '.join(LIKE)}")
    if made.partitions < 0 or events < 0:
        raise UsageError("--events and --partitions are 0 or more")
    if like in ("dt1", "dt2"):
        shape = content.DT1 if like == "dt1" else content.DT2
        by_content = content.ContentGenerator(
            shape, events=events or 10_000, nodes=made.nodes, seed=made.seed, rate=rate
        )
        place = new_workload(made.output, overwrite=made.overwrite)
        with place, ProgressDisplay("making publications, counting matches"):
            spark = spark_session("workload", master=made.master)
            header = write_content(spark, by_content, made.output, made.partitions)
        _tell(header, made.output, json_)
        density = header.deliveries / header.events / header.subscriptions
        if abs(density / shape.density - 1) > content.TOLERANCE:
            raise typer.Exit(1)
        return
    wanted = shapes.REDDIT if like else shapes.shape_of(
        topics, distribution, made.exponent, subscriptions, made.mean
    )  # fmt: skip
    generator = shapes.Generator(
        wanted,
        events=events or (shapes.REDDIT_EVENTS if like else 10_000),
        nodes=made.nodes,
        seed=made.seed,
        rate=rate,
        size=size,
    )
    with new_workload(made.output, overwrite=made.overwrite), ProgressDisplay("making events"):
        spark = spark_session("workload", master=made.master)
        header = write_generated(spark, generator, made.output, made.partitions)
    _tell(header, made.output, json_)


def _tell(header: WorkloadHeader, output: Path, json_: bool) -> None:
    if json_:
        print_json({"output": str(output), **msgspec.to_builtins(header)})
        return
    out = console()
    if header.topics:
        what = f"{header.topics:,} topics, {header.deliveries:,} expected deliveries"
    else:
        density = header.deliveries / header.events / header.subscriptions
        wanted = header.made.get("density", 0.0)
        what = f"a publication matches {density:.2%} of them ({wanted:.0%} wanted)"
    out.print(
        f"{output}: {header.events:,} events by {header.nodes:,} nodes, "
        f"{header.subscriptions:,} subscriptions, {what}",
        markup=False,
    )
    for reason, count in header.dropped.items():
        out.print(f"  left out: {count:,} {reason}", markup=False)


@app.command(example=DESCRIBE_EXAMPLE)
@sentences()
def describe(
    workload: Annotated[Path, typer.Argument(help="The workload's directory.")],
    picture: Annotated[Path | None, typer.Option(help="Draw it, as SVG, into this file.")] = None,
    master: MasterOption = None,
    json_: JsonOption = False,
) -> None:
    """Count what a workload holds: events, subscriptions, deliveries, and how they are spread.

    Exit code 1 if the files do not hold what the workload says of itself, or if subscriptions by
    content do not match as densely as they should, within 1 %.
    """
    from quorumcast.bench.workload import read_header
    from quorumcast.pipeline.session import spark_session
    from quorumcast.pipeline.workload.describe import describe as count
    from quorumcast.pipeline.workload.picture import picture as draw

    read_header(workload)
    with ProgressDisplay("counting"):
        found = count(spark_session("workload", master=master), workload)
    if picture is not None:
        picture.write_text(draw(found), encoding="utf-8")
    if json_:
        print_json({**msgspec.to_builtins(found), "sound": found.sound})
    else:
        _print(found)
    if not found.sound:
        raise typer.Exit(1)


def _print(found: Description) -> None:
    header, out = found.header, console()
    nodes, wanted = found.events_per_node, found.subscriptions_per_node
    shown = {
        "events": f"{found.events:,} in {found.seconds:,.1f} s, {found.bytes:,} bytes",
        "nodes": f"{header.nodes:,}; {found.publishers:,} publish, {found.subscribers:,} subscribe",
        "subscriptions": f"{found.subscriptions:,}",
        "expected deliveries": f"{found.deliveries:,}",
        "events per node": f"{nodes.least:,} to {nodes.most:,}, mean {nodes.mean:,}, "
        f"deviation {nodes.deviation:,}",
        "subscriptions per node": f"{wanted.least:,} to {wanted.most:,}, mean {wanted.mean:,}, "
        f"deviation {wanted.deviation:,}",
        "density": f"{found.density:.2%}",
    }
    if found.wanted_density is not None:
        shown["density"] += f" ({found.wanted_density:.0%} wanted)"
    if found.exponent is not None:
        shown["power law"] = f"events fall with rank to the power of -{found.exponent:g}"
    if not found.sound:
        shown["NOT SOUND"] = "the files do not hold what the header or the density says"
    out.print(facts_table(f"{found.path}: {header.name}, seed {header.seed}", shown))
    if not found.topics:
        return
    figures = ("events", "share", "subscribers", "deliveries")
    lines = table("topic", right=figures, title="Topics, most popular first")
    for topic in found.topics[:SHOWN]:
        lines.add_row(
            topic.topic,
            f"{topic.events:,}",
            f"{topic.events / max(found.events, 1):.1%}",
            f"{topic.subscribers:,}",
            f"{topic.deliveries:,}",
        )
    if len(found.topics) > SHOWN:
        lines.caption = f"and {len(found.topics) - SHOWN:,} more"
    out.print(lines)
