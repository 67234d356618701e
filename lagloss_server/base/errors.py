"""The errors that end a command, one class each, with those of `lagloss.errors`.

A class's docstring *is* its message: what was expected, what was found, what to do next. Facts go in by keyword::

    raise PortInUse(port=9092, server="Kafka")

LaglossError
├── UsageError                exit 2
│   ├── BadDefinition
│   ├── UnknownPipeline
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


class UnknownPipeline(UsageError):
    """No pipeline is called {pipeline}; there {known}. Add one with `lagloss apply FILE`."""


class TooManyVersions(UsageError):
    """{pipeline} got {number} new versions within 24 hours, which is the limit; send the definition again in
    {wait_s} s. One that changes nothing needs no version."""


class UnknownToken(UsageError):
    """No token with the id {id} is active. List all tokens with `lagloss token list`."""


class BadTime(UsageError):
    """Expected a time in RFC 3339 (2026-11-21T08:40:00Z) or a relative one (-2h, -15m, now), found {text!r}."""


class BadSpan(UsageError):
    """Expected {expected}, found {text!r}."""


class BadZone(UsageError):
    """Expected an IANA time zone such as Europe/Berlin, or UTC, found {text!r}."""


class UnknownNode(UsageError):
    """{pipeline} has no node {node}; it has {known}."""


class UnknownRun(UsageError):
    """{pipeline} has no run {run} of a DAG that its definition names. List them with `lagloss runs {pipeline}`."""


class UnknownCheckpoint(UsageError):
    """{pipeline} has no checkpoint {checkpoint}; it has {known}."""


class UnknownWindow(UsageError):
    """The window {start} of {pipeline} is not stored: no beacon of that minute was reported, or its retention has
    expired."""


class AlreadyRunning(UsageError):
    """{what} is already running on {path} (process {pid}). Stop it first (Ctrl-C in its terminal, or `kill {pid}`), or
    give this one a data directory of its own with --data-dir or LAGLOSS_DATA_DIR."""


class SeveralRunning(UsageError):
    """Several lagloss run on this machine. Choose one: {choices}."""


class JarMismatch(UsageError):
    """{jar} has SHA-256 {found}, but the lock expects {expected}. The fetched file is not the reviewed one and has
    been thrown away. Try again; if it stays so, the repository or a proxy serves another file: do not use it."""


class UnknownIncident(UsageError):
    """No incident has an id that begins with {id!r}. List them with `lagloss alerts list --all`."""


class AmbiguousIncident(UsageError):
    """{count} incidents have ids that begin with {id!r}, for example {example}. Give more characters."""


class AlreadyAcknowledged(UsageError):
    """{by} acknowledged incident {id} at {at}."""


class IncidentIsResolved(UsageError):
    """Incident {id} was resolved at {at}, so it cannot be acknowledged."""


class BadMatchers(UsageError):
    """{problem}. Pipelines are chosen by `pipeline` and the labels of their definitions: team=web, tier!=test."""


class BadSilence(UsageError):
    """A silence needs {expected}; found {found}."""


class UnknownSilence(UsageError):
    """No silence with the id {id} is active. List the active ones with `lagloss alerts silences`."""


class UnknownReceiver(UsageError):
    """No receiver is called {receiver}; there {known}. Receivers are defined in the alerting file, which the alerter
    reads at start."""


class UnusableReceiver(UsageError):
    """{problem}"""


class BadText(UsageError):
    """{what} is {found}: expected {expected}."""


class NotAllowed(UsageError):
    """{name} has the role {role}, which is read-only. Ask an operator to do this."""


class NotOfYourTeam(NotAllowed):
    """{name} may look at {pipeline}, and not act on it: that takes a team whose role is operator (docs/login.md)."""


class NotForTeams(NotAllowed):
    """{name} acts for a team; {what} concerns all of them. Ask an operator of the whole installation to do this."""


class IdsHidden(UsageError):
    """Message ids of {pipeline} are hidden from {name}. Ask an operator for a team that may see them, see
    docs/login.md."""


class UnknownUser(UsageError):
    """No user is called {name}; there {known}. Add one with `lagloss users add NAME`."""


class UserExists(UsageError):
    """The user {name} already exists. Change it with `lagloss users passwd` or `lagloss users role`."""


class BadUserName(UsageError):
    """Expected a user name of 1 to 64 letters a-z, digits and . _ @ + -, beginning with a letter or a digit, found
    {name!r}."""


class BadGroup(UsageError):
    """Expected a group's name of 1 to 100 characters, without a comma and not beginning with * or a blank, found
    {group!r}."""


class BadPassword(UsageError):
    """Expected a password of {least} to {most} characters, found {found}. Nothing was changed."""


class OpenToAll(UsageError):
    """Without a login the dashboard listens on this machine only, but LAGLOSS_BIND_ADDRESS is {address}. Set
    LAGLOSS_LOGIN to local, oidc or proxy (docs/login.md), or LAGLOSS_BIND_ADDRESS to 127.0.0.1."""


class BadLogin(UsageError):
    """LAGLOSS_LOGIN={login} needs {variable}: expected {expected}, found {found}. See docs/login.md."""


class TeamsWithoutLogin(UsageError):
    """LAGLOSS_ACCESS_FILE is {path}, but without a login nothing tells the members of teams apart. Set LAGLOSS_LOGIN to
    local, oidc or proxy (docs/login.md), or leave the file out."""


class JavaMissing(ServerUnreachable):
    """Java 17 or newer is needed, found {found}. Install it (Debian: `apt-get install default-jre-headless`) or set
    JAVA_HOME to one."""


class MachineTooSmall(ServerUnreachable):
    """{problem}."""


class SparkMissing(ServerUnreachable):
    """Spark is not installed, which the aggregator needs, and with it `lagloss up` and `lagloss demo`. Run
    `pip install 'lagloss-server[aggregator]'` (`[aggregator,embedded]` for a PostgreSQL, too), or `make setup` in a
    checkout."""


class PostgresMissing(ServerUnreachable):
    """No PostgreSQL is named, and none is installed here. Set LAGLOSS_DATABASE_URL, or run
    `pip install 'lagloss-server[embedded]'`, or `make setup` in a checkout."""


class JarsMissing(ServerUnreachable):
    """{count} of the {total} {kind} jars are missing or damaged in {path}, for example {example}. Run `make setup` or
    `python -m lagloss_server.ops.jars` once with a network."""


class JarsNotFetched(ServerUnreachable):
    """The jars could not be fetched: {detail}. Check the network (a proxy is given to Java in JAVA_TOOL_OPTIONS,
    a mirror as an Ivy settings file in LAGLOSS_IVY_SETTINGS), then run `make setup` or the same command again; it
    resumes where it stopped. Full log: {log}"""


class PortInUse(ServerUnreachable):
    """{server} should listen on port {port}, but another process has it. Stop that process (`ss -ltnp | grep :{port}`
    names it) or choose another port; port 0 takes a free one."""


class StaleDataDirectory(ServerUnreachable):
    """The {server} data in {path} cannot be used: {detail}. Use another directory with --data-dir or LAGLOSS_DATA_DIR,
    or, if nothing in it is needed, delete {path}."""


class DiskUnusable(ServerUnreachable):
    """{path} cannot be used: {detail}. What is in it is not damaged."""


class DiskFull(DiskUnusable):
    """The disk of {path} is full: {detail}. Make room on it, or make it larger; the data in {path} is not damaged, and
    is needed."""


class DiskUnwritable(DiskUnusable):
    """{path} cannot be written to: {detail}. Mount its disk writable, and correct the rights and owner of its files;
    the data in it is not damaged, and is needed."""


class PasswordFileOpen(ServerUnreachable):
    """{path} has mode {mode}: other users can read the password of PostgreSQL, whose client ignores such a file. Run
    `chmod 600 {path}`."""


class UnreachableDirectory(ServerUnreachable):
    """{path} cannot be used: {detail}. Choose another place with --data-dir or LAGLOSS_DATA_DIR."""


class ServerNotInstalled(ServerUnreachable):
    """{server} could not be installed: {detail}. Check the network (pip takes a proxy from HTTPS_PROXY, a mirror from
    PIP_INDEX_URL), then run the same command again"""


class ServerNotReady(ServerUnreachable):
    """{server} did not get ready: {detail}. Its log: {log}"""


class DatabaseUnreachable(ServerUnreachable):
    """PostgreSQL at {url} cannot be reached: {detail}. Is `lagloss up` running? Else check LAGLOSS_DATABASE_URL."""


class RegistryUnreachable(ServerUnreachable):
    """The schema registry at {url} cannot be asked: {detail}. Check LAGLOSS_SCHEMA_REGISTRY_URL and that it runs; no
    record is given up meanwhile."""


class RegistryRefuses(RegistryUnreachable):
    """The schema registry at {url} refuses {who}: {detail}. docs/kafka.md lists the variables of a connection."""


class UnreadableDefinition(ServerUnreachable):
    """Version {version} of the definition of {pipeline} is set aside: {why}. Upgrade this lagloss, or apply a
    definition that it knows (docs/upgrading.md)."""


class TablesUnknown(ServerUnreachable):
    """The tables are at revision {found}, which a newer lagloss made; this one knows up to {newest}. Start a newer
    lagloss-server, or restore the backup from before the upgrade (docs/upgrading.md)."""


class TablesBehind(ServerUnreachable):
    """The tables are at revision {found}, this lagloss needs {newest}. Run `python -m lagloss_server.ops.prepare`
    (`lagloss up` does so by itself); see docs/upgrading.md."""


class SparkEnded(ServerUnreachable):
    """Spark ended: {detail}. Restart the aggregator, since Spark cannot be restarted within a process; `lagloss up`
    does so by itself."""


class NotConfigured(ServerUnreachable):
    """No {what} is known: no running `lagloss up` or `lagloss demo` was found{where}. Start `lagloss up`, or
    set {variable}."""


class PangoMissing(ServerUnreachable):
    """A PDF needs the Pango and HarfBuzz libraries, which lay out its text, and they cannot be loaded: {detail}.
    Install them (Debian: `apt-get install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0`); the other formats
    work without."""


class NotebookMissing(ServerUnreachable):
    """{what} needs {package}, which is not installed. Run `pip install 'lagloss-server[notebook]'`{instead}."""


class NoAlerter(ServerUnreachable):
    """No alerter sent the test to {receiver} within {waited_s:g} s, and the test was cancelled: {detail}. Is
    `lagloss up` running? Else start `python -m alerting`."""


class BacktestBusy(ServerUnreachable):
    """Another backtest is running, and only one can run at a time. Try again in a minute."""


class BacktestFailed(ServerUnreachable):
    """The backtest failed: {detail}"""


class NotEnoughData(LaglossError):
    """{detail}"""

    exit_code = EXIT_NOT_ENOUGH_DATA


class WindowTooLarge(LaglossError):
    """The window {start} of {pipeline} has {beacons:,} beacons, but the dashboard reads at most {most:,}. Use
    `lagloss matrix` or `lagloss diff`, on a machine with the memory for it."""

    exit_code = EXIT_NOT_ENOUGH_DATA
