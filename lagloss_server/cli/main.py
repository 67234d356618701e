"""The command line: parse arguments, call one function per command, turn errors into exit codes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from confluent_kafka import KafkaException
from pydantic import ValidationError
from rich.console import Console

import lagloss
from lagloss.broker.errors import kafka_error, reaching, unreachable
from lagloss.errors import EXIT_BREACHED, EXIT_USAGE, LaglossError, UsageError
from lagloss_server.base import format as fmt
from lagloss_server.base.errors import NotConfigured, NotEnoughData, UnknownWindow
from lagloss_server.base.invalid import explain, keys_given
from lagloss_server.base.settings import ENV_PREFIX, Settings
from lagloss_server.base.times import parse_time_s
from lagloss_server.base.trace_links import TraceLinks
from lagloss_server.cli import definitions
from lagloss_server.cli.lost_afterwards import lost_afterwards
from lagloss_server.cli.options import AsJson, DataDir, PipelineName, note_set_aside, open_store, out
from lagloss_server.cli.repair import repair
from lagloss_server.cli.tokens import app as token_app
from lagloss_server.cli.users import app as user_app
from lagloss_server.model.window import rfc3339
from lagloss_server.ops.processes import become, python

if TYPE_CHECKING:
    from lagloss_server.queries.beacon_log import BeaconLog
    from lagloss_server.queries.matrix import Presence
    from lagloss_server.store.store import Store

app = typer.Typer(
    name="lagloss",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(token_app)
app.add_typer(user_app)

From = Annotated[str, typer.Option("--from", help="RFC 3339 or relative (-2h)")]
To = Annotated[str, typer.Option("--to", help="RFC 3339, relative (-5m) or now")]
WindowMoment = Annotated[str, typer.Option(help="any time within the window: RFC 3339 or relative (-15m)")]


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"lagloss {lagloss.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Report per minute how late a pipeline's data is and whether messages were lost."""


@app.command()
def up(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Run all services in the foreground until Ctrl-C."""
    from lagloss_server.ops.up import run  # imports Spark's neighbours; the other commands should not wait for that

    # Not `Settings.load`: the endpoints of a running `up` would pass for configured servers.
    settings = Settings(data_dir=data_dir) if data_dir else Settings()
    raise typer.Exit(run(settings, as_json=as_json))


@app.command()
def demo(
    minutes: Annotated[
        int | None, typer.Option(min=1, help="stop after this many minutes (default: run until Ctrl-C)")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run all services and a pipeline with injected faults; exit 0 if measured and injected losses agree."""
    run = import_module("lagloss_server.ops.demo").run
    raise typer.Exit(run(minutes, as_json))


@app.command()
def aggregator(
    master: Annotated[
        str | None, typer.Option(help="spark://HOST:PORT or local[N] (LAGLOSS_SPARK_MASTER)", metavar="MASTER")
    ] = None,
    verify_share: Annotated[
        float | None,
        typer.Option(help="share of proven windows to read as a check (LAGLOSS_VERIFY_SHARE)", min=0, max=1),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Run only the aggregator in the foreground until Ctrl-C, with Spark tasks on this machine or on a cluster."""
    from lagloss_server.ops.jars import require_spark

    require_spark()
    options = {"spark_master": master, "verify_share": verify_share, "data_dir": data_dir}
    settings = {f"{ENV_PREFIX}{name}".upper(): str(value) for name, value in options.items() if value is not None}
    _become("aggregator", **settings)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def alerts(words: typer.Context) -> None:
    """Manage incidents, silences, receivers and alerting rules; see `lagloss alerts --help`."""
    _become("alerting.cli.main", *words.args)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def reports(words: typer.Context) -> None:
    """List, check and send scheduled SLA reports; see `lagloss reports --help`."""
    _become("dashboard.reports.schedule.cli", *words.args)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def tap(words: typer.Context) -> None:
    """Try taps on a topic, or propose a definition from groups and topics; see `lagloss tap --help`."""
    _become("taps.cli.main", *words.args)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def report(words: typer.Context) -> None:
    """Print the SLA report of a pipeline over a week, a month or any range; see `lagloss report --help`."""
    _become("dashboard.reports.cli", *words.args)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def access(words: typer.Context) -> None:
    """Check which pipelines each team can see on the dashboard; see `lagloss access --help`."""
    _become("dashboard.access.cli", *words.args)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def mcp(words: typer.Context) -> None:
    """Serve read-only tools to an agent by the Model Context Protocol on stdin and stdout; see `lagloss mcp --help`."""
    _become("dashboard.mcp.cli", *words.args)


app.command()(definitions.apply)
app.command()(definitions.get)
app.command()(definitions.delete)
app.command()(repair)
app.command("lost-afterwards")(lost_afterwards)


@app.command()
def windows(
    pipeline: PipelineName,
    from_: From = "-1h",
    to: To = "now",
    as_json: AsJson = False,
    check: Annotated[bool, typer.Option("--check", help="exit 1 if a closed window breaches the SLA")] = False,
    data_dir: DataDir = None,
) -> None:
    """List the windows of a pipeline that start in [from, to), oldest first."""
    import msgspec

    from lagloss_server.cli.windows_table import windows_table
    from lagloss_server.judging.sla import breaches

    from_s, to_s = ceil(parse_time_s(from_)), ceil(parse_time_s(to))
    with open_store(Settings.load(data_dir=data_dir)) as store:
        definition = store.pipeline(pipeline).definition
        listed = store.windows(pipeline, from_s, to_s)
    if as_json:
        typer.echo(msgspec.json.encode([window.contract() for window in listed]).decode())
    else:
        out().print(windows_table(listed))
    if check and not any(window.state != "open" for window in listed):
        raise NotEnoughData(detail=f"{pipeline} has no closed window in this range.")
    if check and any(breaches(window, definition) for window in listed):
        raise typer.Exit(EXIT_BREACHED)


@app.command()
def groups(
    cluster: Annotated[
        str | None, typer.Option(help="only groups of this named cluster (default: all clusters)", metavar="NAME")
    ] = None,
    match: Annotated[str, typer.Option(help="only groups whose name matches", metavar="GLOB")] = "*",
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List all consumer groups, named by a definition or not, worst first: how far each is behind."""
    import msgspec

    from lagloss_server.cli.groups_table import groups_table
    from lagloss_server.groups.cluster_groups import cluster_text, read_cluster_groups

    now_s = time.time()
    with open_store(Settings.load(data_dir=data_dir)) as store, store.engine.connect() as connection:
        readings = read_cluster_groups(connection)
    clusters = {reading.group.cluster for reading in readings}
    if cluster is not None and cluster not in clusters:
        known = ", ".join(sorted(clusters - {""})) or "none with a name"
        raise UsageError(detail=f"no consumer group of a cluster named {cluster} was read; clusters: {known}")
    chosen = [reading for reading in readings if reading.matches(cluster, match)]
    if as_json:
        typer.echo(msgspec.json.encode([reading.document(now_s) for reading in chosen]).decode())
    else:
        out().print(groups_table(chosen, now_s))
    stale = sorted({reading.group.cluster for reading in chosen if not reading.is_current(now_s)})
    if not readings:
        typer.echo("No consumer groups were read yet: the aggregator lists them every 10 s.", err=True)
    elif stale:
        names = ", ".join(map(cluster_text, stale))
        typer.echo(f"Not current: cluster {names} was not read in the last minute.", err=True)


@app.command()
def canary(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Show whether the last minutes of lagloss's own pipeline were reported as they were sent; exit code 1 if not."""
    from lagloss_server.queries.canary import NO_CANARY, read_standing, standing_lines

    with open_store(Settings.load(data_dir=data_dir)) as store, store.engine.connect() as connection:
        standing = read_standing(connection) or NO_CANARY
    if as_json:
        typer.echo(json.dumps(standing.document()))
    else:
        for line in standing_lines(standing):
            typer.echo(line)
    if not standing.ok:
        raise typer.Exit(EXIT_BREACHED)


@app.command()
def coverage(
    by: Annotated[str, typer.Option(help="group by prefix of the name, or by label:NAME of pipelines")] = "prefix",
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Show which topics and consumer groups of the clusters a definition names, and which none does."""
    import msgspec

    from lagloss_server.cli.coverage_table import coverage_table, not_measured_lines
    from lagloss_server.groups.cluster_groups import cluster_text
    from lagloss_server.groups.coverage import is_grouping, read_coverage

    if not is_grouping(by):
        raise UsageError(detail=f"expected --by prefix or --by label:NAME, found {by!r}")
    with open_store(Settings.load(data_dir=data_dir)) as store:
        result = read_coverage(store)
    if as_json:
        typer.echo(msgspec.json.encode(result.document(by)).decode())
    else:
        out().print(coverage_table(result, by))
        for line in not_measured_lines(result):
            typer.echo(line)
    if not result.asked_ms:
        typer.echo("No topics were listed yet: the aggregator lists them once a minute.", err=True)
    elif stale := result.not_current(time.time()):
        names = ", ".join(map(cluster_text, stale))
        typer.echo(f"Not current: topics of cluster {names} were not listed in the last three minutes.", err=True)


@app.command()
def runs(
    pipeline: PipelineName,
    from_: From = "-24h",
    to: To = "now",
    run: Annotated[
        str | None, typer.Option(help="draw one run as a Gantt chart: its id, or `latest`", metavar="ID")
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List the runs of a pipeline's jobs, the record counts of their hours and the slowest tasks; or draw one run."""
    from lagloss_server.cli.runs_text import gantt_lines, job_lines, runs_table, tasks_table
    from lagloss_server.runs.job_runs import read_job_runs, read_run

    now_s = time.time()
    from_s, to_s = parse_time_s(from_, now_s), parse_time_s(to, now_s)
    with open_store(Settings.load(data_dir=data_dir)) as store:
        chosen = None if run is None else read_run(store, pipeline, run)
        listed = [] if chosen is not None else read_job_runs(store, pipeline, from_s, to_s, now_s)
    if as_json:
        typer.echo(json.dumps([job.document() for job in listed] if chosen is None else chosen.document()))
    elif chosen is not None:
        for line in gantt_lines(chosen, 1_000 * now_s, out().width):
            typer.echo(line)
    else:
        for job in listed:
            for line in job_lines(job.stats):
                typer.echo(line)
            out().print(runs_table(job.runs))
            out().print(tasks_table(job.stats))


@app.command()
def diff(
    pipeline: PipelineName,
    window: WindowMoment,
    from_: Annotated[str, typer.Option("--from", help="checkpoint, such as src.in")],
    to: Annotated[str, typer.Option("--to", help="checkpoint, such as snk.out")],
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List the messages of a window that reached one checkpoint but not another."""
    from lagloss_server.queries.difference import difference
    from lagloss_server.store.audit import note_look

    start = _window_start(window)
    settings = Settings.load(data_dir=data_dir)
    with _store_and_log(settings, pipeline) as (store, log):
        note_look(store.engine, "ids.window", pipeline, rfc3339(start))
        difference_ = difference(store, log, pipeline, start, from_, to)
    if as_json:
        typer.echo(json.dumps(difference_.document(TraceLinks(settings.trace_url))))
    else:
        sample = _sample_note(difference_.sample)
        typer.echo(
            f"{difference_.count} messages of {pipeline} at {from_} but not at {to}, window {rfc3339(start)}{sample}"
        )
        for message_id in difference_.message_ids:
            typer.echo(message_id)


@app.command()
def matrix(
    pipeline: PipelineName,
    window: WindowMoment,
    only: Annotated[
        Literal["missing", "late", "duplicate", "out-of-order"] | None,
        typer.Option(help="only messages that are missing somewhere, late (worst first), duplicated, or out of order"),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="maximum number of messages to list")] = 1_000,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Show which checkpoints each message of a window reached, with its lag, and the hop that delayed a late message;
    read from the log."""
    from lagloss_server.queries.matrix import matrix as arrange
    from lagloss_server.queries.window_blocks import read_window
    from lagloss_server.store.audit import note_look

    start = _window_start(window)
    settings = Settings.load(data_dir=data_dir)
    with _store_and_log(settings, pipeline) as (store, log):
        note_look(store.engine, "ids.window", pipeline, rfc3339(start))
        blocks = read_window(store, log, pipeline, start)
    matrix_ = arrange(blocks, only=only, limit=limit)
    if as_json:
        typer.echo(json.dumps(matrix_.document(TraceLinks(settings.trace_url))))
        return
    out().print(matrix_.table())
    rest = f", the first {len(matrix_.messages)} shown" if matrix_.is_truncated else ""
    typer.echo(f"{matrix_.count} messages of {pipeline}, window {rfc3339(start)}{rest}{_sample_note(matrix_.sample)}")


@app.command()
def blame(pipeline: PipelineName, window: WindowMoment, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Show what distinguishes the lost, late, dead-lettered or corrupted messages of a window from the others."""
    from lagloss.wire.format import WINDOW_S
    from lagloss_server.blame.window_blame import NOT_PICKED, blame_document, read_blame

    start = _window_start(window)
    with open_store(Settings.load(data_dir=data_dir)) as store:
        blames = read_blame(store, pipeline, [start])
        if not store.windows(pipeline, start, start + WINDOW_S):
            raise UnknownWindow(pipeline=pipeline, start=rfc3339(start))
    if as_json:
        typer.echo(json.dumps(blame_document(pipeline, start, blames)))
        return
    for text in [cause.text for cause in blames] or [NOT_PICKED]:
        typer.echo(text)


@app.command()
def export(
    pipeline: PipelineName,
    window: WindowMoment,
    what: Annotated[Literal["lost", "late", "dead", "all"], typer.Option(help="which messages to write")] = "all",
    format_: Annotated[Literal["csv", "parquet", "json"], typer.Option("--format", help="format of the file")] = "csv",
    out_path: Annotated[Path | None, typer.Option("--out", help="file to write (default: stdout)")] = None,
    data_dir: DataDir = None,
) -> None:
    """Write the lost, late or dead-lettered messages of a window to a file: ids, last checkpoints and reasons, from
    the log or, if it is gone, as stored when the window was closed."""
    from lagloss.wire.format import WINDOW_S
    from lagloss_server.queries.export import WindowExport
    from lagloss_server.queries.named_messages import read_kept
    from lagloss_server.store.audit import note_look

    start = _window_start(window)
    settings = Settings.load(data_dir=data_dir)
    with open_store(settings) as store:
        store.demand(pipeline)
        note_look(store.engine, "ids.export", pipeline, rfc3339(start))
        presence = _read_presence(settings, store, pipeline, start)
        if presence is None and not store.windows(pipeline, start, start + WINDOW_S):
            raise UnknownWindow(pipeline=pipeline, start=rfc3339(start))
        export_ = WindowExport.of(pipeline, what, read_kept(store, pipeline, start), presence)
    with out_path.open("wb") if out_path is not None else nullcontext(sys.stdout.buffer) as file:
        if format_ == "parquet":
            file.write(export_.parquet())
        else:
            file.writelines(text.encode() for text in export_.texts(format_, TraceLinks(settings.trace_url)))
    if export_.is_truncated:
        typer.echo(
            f"The list is incomplete: more messages were affected than were stored for window {rfc3339(start)}.",
            err=True,
        )


@app.command()
def openslo(
    pipeline: Annotated[
        str | None, typer.Argument(help="name of the pipeline (default: all)", metavar="[PIPELINE]")
    ] = None,
    match: Annotated[
        list[str] | None, typer.Option("--match", help="only pipelines that match, such as team=web (repeatable)")
    ] = None,
    out_path: Annotated[Path | None, typer.Option("--out", help="file to write (default: stdout)")] = None,
    data_dir: DataDir = None,
) -> None:
    """Print the targets of pipelines as OpenSLO v1 in YAML: services, indicators, objectives and alert policies."""
    from lagloss_server.model.definition import matching
    from lagloss_server.model.matchers import parse_matchers
    from lagloss_server.store.unreadable import ReadRows
    from lagloss_server.sums.openslo import as_yaml
    from lagloss_server.sums.openslo import openslo as objects

    if pipeline is not None and match:
        raise UsageError(detail="expected either a pipeline or --match, found both")
    matchers = parse_matchers(match or ())
    with open_store(Settings.load(data_dir=data_dir)) as store:
        stored = ReadRows([store.pipeline(pipeline)]) if pipeline is not None else store.pipelines()
    note_set_aside(stored.unreadable)
    document = matching(stored, matchers)
    text = as_yaml(objects(document))
    if out_path is None:
        typer.echo(text, nl=False)
    else:
        out_path.write_text(text, "utf-8")


@app.command()
def recompute(
    pipeline: PipelineName,
    from_: From,
    to: To = "now",
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Recompute the windows that start in [from, to) from the log, and wait for the results."""
    from lagloss_server.ops.recompute import recompute as ask

    from_s, to_s = ceil(parse_time_s(from_)), ceil(parse_time_s(to))
    settings = Settings.load(data_dir=data_dir)
    with open_store(settings) as store:
        store.demand(pipeline)
        with Console(stderr=True).status(f"recompute {pipeline}") as line:  # on a terminal only

            def say(progress: str) -> None:
                line.update(f"recompute {pipeline}: {progress}")

            answer = ask(settings, store, pipeline, from_s, to_s, say)
    sealed = answer.pop("sealed")
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        typer.echo(f"{answer['windows']} windows recomputed from {answer['beacons']} beacons in {answer['seconds']} s")
    if sealed:
        raise NotEnoughData(detail=f"{sealed} windows are sealed: their blocks are no longer in the log.")


@app.command()
def doctor(data_dir: DataDir = None) -> None:
    """Check Java, Kafka, PostgreSQL, topics, clocks and versions; suggest fixes."""
    from lagloss_server.ops import doctor as checks

    settings = Settings.load(data_dir=data_dir)
    checks_ = checks.run(settings)
    checks.show(checks_, settings, Console())
    raise typer.Exit(checks.exit_code(checks_))


def _become(module: str, *words: str, **variables: str) -> None:
    """Replace this process by a part, which this package does not import."""
    become(python(module, *words), variables)


@contextmanager
def _store_and_log(settings: Settings, pipeline: str) -> Iterator[tuple[Store, BeaconLog]]:
    """Open the database and the log of beacons, after checking that the pipeline exists."""
    from lagloss.broker.topics import BEACONS
    from lagloss_server.queries.beacon_log import BeaconLog

    bootstrap = settings.require_kafka()
    with open_store(settings) as store, reaching(bootstrap):
        store.demand(pipeline)
        with closing(BeaconLog(bootstrap, BEACONS)) as log:
            yield store, log


def _read_presence(settings: Settings, store: Store, pipeline: str, start: int) -> Presence | None:
    """Read the messages of a window from the log; None, with a line on stderr, where that cannot be done."""
    from lagloss.broker.topics import BEACONS
    from lagloss_server.queries.beacon_log import BeaconLog
    from lagloss_server.queries.matrix import Presence
    from lagloss_server.queries.window_blocks import read_window

    try:
        with closing(BeaconLog(settings.require_kafka(), BEACONS)) as log:
            return Presence(read_window(store, log, pipeline, start))
    except (KafkaException, NotConfigured, NotEnoughData) as error:
        detail = kafka_error(error) if isinstance(error, KafkaException) else error
        typer.echo(f"Cannot read the log ({detail}); writing what was stored when the window was closed.", err=True)
        return None


def _sample_note(sample: float) -> str:
    """Return a note for counts of a sample, which are not scaled; empty without sampling."""
    return f" (in a sample of {fmt.percent(sample)} of the messages)" if sample < 1 else ""


def _window_start(moment: str) -> int:
    from lagloss.wire.format import window_start_of

    return window_start_of(parse_time_s(moment) * 1000)


def main() -> None:
    """Run the console script."""
    run_app(app)


def run_app(app: typer.Typer, name: str = "lagloss") -> None:
    """Run a command line; report an error as one message on stderr and an exit code, never as a traceback."""
    try:
        app(prog_name=name)
    except LaglossError as error:
        sys.stderr.write(f"lagloss: {error}\n")
        sys.exit(error.exit_code)
    except KafkaException as error:
        away = unreachable(Settings().kafka_bootstrap, kafka_error(error))
        sys.stderr.write(f"lagloss: {away}\n")
        sys.exit(away.exit_code)
    except ValidationError as error:
        for problem in explain(error, keys_given(error)):
            name = ENV_PREFIX + "_".join(map(str, problem.path)).upper()
            sys.stderr.write(f"lagloss: {name}: {problem.problem}\n")
        sys.exit(EXIT_USAGE)


if __name__ == "__main__":
    main()
