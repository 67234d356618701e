"""The errors that end a command, one class each.

A class's docstring *is* its message: what was expected, what was found, what to do next. Facts go in by keyword::

    raise PortInUse(port=9092, server="Kafka")

LaglossError
├── UsageError                exit 2
│   ├── BadDefinition
│   ├── UnknownPipeline
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
│   ├── JarsMissing
│   ├── JarsNotFetched
│   ├── PortInUse
│   ├── StaleDataDirectory
│   ├── UnreachableDirectory
│   ├── ServerNotReady
│   ├── KafkaUnreachable
│   ├── DatabaseUnreachable
│   ├── SparkEnded
│   ├── NotConfigured
│   ├── PangoMissing
│   ├── NoAlerter
│   ├── BacktestBusy
│   └── BacktestFailed
├── NotEnoughData             exit 4
└── WindowTooLarge            exit 4
"""

from __future__ import annotations

import inspect
from typing import ClassVar, Final

EXIT_OK: Final = 0
EXIT_BREACHED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_NOT_ENOUGH_DATA: Final = 4


class LaglossError(Exception):
    """Something went wrong: {detail}"""

    exit_code: ClassVar[int] = EXIT_UNREACHABLE

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        pattern = " ".join(inspect.cleandoc(self.__doc__ or "{}").split())
        super().__init__(pattern.format_map(facts))

    def __reduce__(self) -> tuple[object, ...]:  # keyword-only facts, so pickle needs telling
        return _rebuilt, (type(self), self.facts)


def _rebuilt(kind: type[LaglossError], facts: dict[str, object]) -> LaglossError:
    return kind(**facts)


class UsageError(LaglossError):
    """{detail}"""

    exit_code = EXIT_USAGE


class BadDefinition(UsageError):
    """{source}:{line}: {problem}"""


class UnknownPipeline(UsageError):
    """No pipeline is called {pipeline}; there {known}. `lagloss apply FILE` adds one."""


class UnknownToken(UsageError):
    """No token has the id {id}, or it was revoked before. `lagloss token list` shows those there are."""


class BadTime(UsageError):
    """{text!r} is no time: expected RFC 3339 (2026-11-21T08:40:00Z) or a relative one (-2h, -15m, now)."""


class BadSpan(UsageError):
    """{text!r} is no span of time: expected {expected}."""


class BadZone(UsageError):
    """{text!r} is no time zone: expected an IANA name such as Europe/Berlin, or UTC."""


class UnknownCheckpoint(UsageError):
    """{pipeline} has no checkpoint {checkpoint}; it has {known}."""


class UnknownWindow(UsageError):
    """Nothing is stored of the window {start} of {pipeline}: no beacon of that minute was told of, or it is older than
    windows are kept."""


class AlreadyRunning(UsageError):
    """{what} is already running on {path} (process {pid}). Stop it first (Ctrl-C in its terminal, or `kill {pid}`), or
    give this one a data directory of its own with --data-dir or LAGLOSS_DATA_DIR."""


class SeveralRunning(UsageError):
    """Several lagloss run on this machine. Choose one: {choices}."""


class JarMismatch(UsageError):
    """{jar} has SHA-256 {found}, but the lock expects {expected}. What was fetched is not what was reviewed and has
    been thrown away. Try again; if it stays so, the repository or a proxy serves another file: do not use it."""


class UnknownIncident(UsageError):
    """No incident has an id that begins with {id!r}. `lagloss alerts list --all` shows those there are."""


class AmbiguousIncident(UsageError):
    """{count} incidents have ids that begin with {id!r}, for example {example}. Give more of it."""


class AlreadyAcknowledged(UsageError):
    """{by} acknowledged incident {id} at {at}."""


class IncidentIsResolved(UsageError):
    """Incident {id} was resolved at {at}: there is nothing to acknowledge."""


class BadSilence(UsageError):
    """A silence needs {expected}; found {found}."""


class UnknownSilence(UsageError):
    """No silence has the id {id}, or it has ended. `lagloss alerts silences` shows those there are."""


class UnknownReceiver(UsageError):
    """No receiver is called {receiver}; there {known}. They are in the alerting file, which the alerter reads at its
    start."""


class UnusableReceiver(UsageError):
    """{problem}"""


class BadText(UsageError):
    """{what} is {found} characters long: expected at most {most}."""


class NotAllowed(UsageError):
    """{name} may only look: a {role} cannot do this. Ask an operator."""


class UnknownUser(UsageError):
    """No user is called {name}; there {known}. `lagloss users add NAME` adds one."""


class UserExists(UsageError):
    """There is a user {name} already. `lagloss users passwd` and `lagloss users role` change what they have."""


class BadUserName(UsageError):
    """{name!r} is no name to log in by: expected 1 to 64 letters a-z, digits and . _ @ + -, beginning with a letter or
    a digit."""


class BadPassword(UsageError):
    """Expected a password of {least} to {most} characters, found {found}. Nothing was changed."""


class OpenToAll(UsageError):
    """Without a login the dashboard listens on this machine only, but LAGLOSS_BIND_ADDRESS is {address}. Set
    LAGLOSS_LOGIN to local, oidc or proxy (docs/login.md), or LAGLOSS_BIND_ADDRESS to 127.0.0.1."""


class BadLogin(UsageError):
    """LAGLOSS_LOGIN={login} needs {variable}: expected {expected}, found {found}. See docs/login.md."""


class ServerUnreachable(LaglossError):
    """{detail}"""


class JavaMissing(ServerUnreachable):
    """Java 17 or newer is needed, found {found}. Install it (Debian: `apt-get install default-jre-headless`) or set
    JAVA_HOME to one."""


class MachineTooSmall(ServerUnreachable):
    """{problem}."""


class JarsMissing(ServerUnreachable):
    """{count} of the {total} {kind} jars are missing or damaged in {path}, for example {example}. Run `make setup` or
    `python -m lagloss.jars` once with a network."""


class JarsNotFetched(ServerUnreachable):
    """The jars could not be fetched: {detail}. Check the network (a proxy is given to Java in JAVA_TOOL_OPTIONS,
    a mirror as an Ivy settings file in LAGLOSS_IVY_SETTINGS), then run `make setup` again; it goes on where it
    stopped. Full log: {log}"""


class PortInUse(ServerUnreachable):
    """{server} should listen on port {port}, but another process has it. Stop that process (`ss -ltnp | grep :{port}`
    names it) or choose another port; port 0 takes a free one."""


class StaleDataDirectory(ServerUnreachable):
    """The {server} data in {path} cannot be used: {detail}. Use another directory with --data-dir or LAGLOSS_DATA_DIR,
    or, if nothing in it is needed, delete {path}."""


class UnreachableDirectory(ServerUnreachable):
    """{path} cannot be used: {detail}. Choose another place with --data-dir or LAGLOSS_DATA_DIR."""


class ServerNotReady(ServerUnreachable):
    """{server} did not get ready: {detail}. Its log: {log}"""


class KafkaUnreachable(ServerUnreachable):
    """Kafka at {bootstrap} cannot be reached: {detail}. Is `lagloss up` running? Else check LAGLOSS_KAFKA_BOOTSTRAP."""


class DatabaseUnreachable(ServerUnreachable):
    """PostgreSQL at {url} cannot be reached: {detail}. Is `lagloss up` running? Else check LAGLOSS_DATABASE_URL."""


class SparkEnded(ServerUnreachable):
    """Spark ended: {detail}. It does not come back in this process. `lagloss up` starts the aggregator again by itself,
    as should whatever else runs it.
    """


class NotConfigured(ServerUnreachable):
    """No {what} is known: no running `lagloss up` or `lagloss demo` was found{where}. Start `lagloss up`, or
    set {variable}."""


class PangoMissing(ServerUnreachable):
    """A PDF needs the Pango and HarfBuzz libraries, which lay out its text, and they cannot be loaded: {detail}.
    Install them (Debian: `apt-get install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0`); the other formats
    work without."""


class NoAlerter(ServerUnreachable):
    """Nobody sent the test to {receiver} within {waited_s:g} s, and it was taken back: {detail}. Is `lagloss up`
    running? Else start `python -m alerting`."""


class BacktestBusy(ServerUnreachable):
    """Another backtest runs, and one keeps a core busy. Try again in a minute."""


class BacktestFailed(ServerUnreachable):
    """The backtest did not end well: {detail}"""


class NotEnoughData(LaglossError):
    """{detail}"""

    exit_code = EXIT_NOT_ENOUGH_DATA


class WindowTooLarge(LaglossError):
    """The window {start} of {pipeline} has {beacons:,} beacons, and the dashboard reads windows of at most {most:,}.
    `lagloss matrix` and `lagloss diff` read it all the same, where there is memory for it."""

    exit_code = EXIT_NOT_ENOUGH_DATA
