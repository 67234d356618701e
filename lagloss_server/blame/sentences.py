"""What was found out about bad messages, in sentences: where they went wrong, what sets them apart, or that nothing
does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypedDict

from lagloss_server.base import format as fmt
from lagloss_server.blame.causes import LEAST_BAD, Blame, Finding
from lagloss_server.blame.traits import EmitterFacts, Of, TraitKind
from lagloss_server.model.window import rfc3339
from lagloss_server.net.sanitize import one_line

WORDS: Final[Mapping[Of, tuple[str, str, str]]] = {
    "loss": ("lost messages", "were lost", "at"),
    "lag": ("late messages", "were late", "delayed longest at"),
    "dead": ("dead letters", "became dead letters", "at"),
    "corruption": ("corrupted messages", "were corrupted", "on"),
}
"""What the messages are called, what happened to them, and the word before the place."""
NOTHING: Final = "No common cause found."
RECENT_MS: Final = 600_000
"""How long before its first bad message the start of a process is worth mentioning."""
AROUND_MS: Final = 60_000
"""How far from the last bad message its end is."""
MAX_CHARS: Final = 120


class PlaceShare(TypedDict):
    """The share of the bad messages that went wrong at a place."""

    place: str
    share: float


class ProcessDocument(TypedDict):
    """What the reports of a process say of it."""

    emitter: str
    host: str
    labels: dict[str, str]
    started_at: str
    ended_at: str | None


class FindingDocument(TypedDict):
    """A trait that the bad messages have much more often: see `blame.causes.Finding`."""

    kind: TraitKind
    node: str | None
    name: str | None
    value: str
    destination: str | None
    process: ProcessDocument | None
    support: float
    base: float
    lift: float | None
    count: int
    of_the_rest: bool
    same: list[FindingDocument]
    within: list[FindingDocument]
    text: str


class BlameDocument(TypedDict):
    """What bad messages of one kind have in common: `count` of them, of which so many were `looked_at`."""

    of: Of
    count: int | None
    looked_at: int
    compared_with: int
    places: list[PlaceShare]
    conclusion: str
    findings: list[FindingDocument]
    text: str


def heading(blame_: Blame, count: int | None = None) -> str:
    """Return how many there are and where most of them went wrong. `count`: of all, not only those looked at."""
    _, happened, where = WORDS[blame_.of]
    number = blame_.bad if count is None else count
    subject = fmt.counted(number, "message")
    verb = happened if number != 1 else happened.replace("were", "was").replace("dead letters", "a dead letter")
    if not blame_.places:
        return f"{subject} {verb}."
    place, share = blame_.places[0]
    if share >= 0.995 and len(blame_.places) == 1:
        return (
            f"{subject} {verb}, all of them {where} {_place(place)}."
            if number > 1
            else f"{subject} {verb} {where} {_place(place)}."
        )
    return f"{subject} {verb}, {fmt.percent(_rounded(share))} of them {where} {_place(place)}."


def conclusion(blame_: Blame) -> str:
    """Return the first finding as a sentence, or that there is none."""
    if not blame_.is_enough:
        return f"Too few messages to find a common cause: at least {LEAST_BAD} are needed."
    if not blame_.findings:
        return NOTHING
    return sentence(blame_.of, blame_.findings[0])


def text(blame_: Blame, count: int | None = None) -> str:
    """Return all sentences."""
    more = [sentence(blame_.of, finding, is_rest=True) for finding in blame_.findings[1:]]
    return " ".join([heading(blame_, count), conclusion(blame_), *more])


def sentence(kind: Of, finding: Finding, *, is_rest: bool = False) -> str:
    """Return a finding as a sentence: what so many of the bad have, and so many of the others."""
    bad = f"the {WORDS[kind][0]}" if not is_rest else "the rest"
    clause, echo = _clause(finding)
    due = f"were due at {_name(finding.destination)} and " if finding.destination else ""
    so_were = "did both" if finding.destination and echo == "did" else echo
    first = (
        f"{fmt.percent(_rounded(finding.support))} of {bad} {due}{clause}{_start_and_end(finding)}; "
        f"{_base(finding)} of the others {so_were}."
    )
    return " ".join([first, *map(_within, finding.within)])


def _within(finding: Finding) -> str:
    clause, echo = _clause(finding)
    share, base = fmt.percent(_rounded(finding.support)), _base(finding)
    return f"Of these, {share} {clause}{_start_and_end(finding)}; {base} of the others there {echo}."


def _base(finding: Finding) -> str:
    return "none" if not finding.base else fmt.percent(_rounded(finding.base))


def _rounded(share: float) -> float:
    """Whole per cent: shares of a sample of some hundred are not known any better."""
    return round(share, 2) if share >= 0.01 else round(share, 3)


def _clause(finding: Finding) -> tuple[str, str]:
    """Return the predicate of a sentence, and the verb that stands for it."""
    node, value = _name(finding.node or ""), _name(finding.value)
    where = f"were last seen at {node}" if finding.is_last_seen else f"passed {node}"
    echo = "were" if finding.is_last_seen else "did"
    match finding.kind:
        case "process":
            return f"{where} in process {_process(finding)}", echo
        case "host":
            return f"{where} on host {value}", echo
        case "label":
            label = (
                f"in processes with {_name(finding.name)}={value}"
                if value
                else f"in processes without the label {_name(finding.name)}"
            )
            return f"{where} {label}", echo
        case "input":
            return f"reached {node} via {value}", "did"
        case "age":
            young = [f" ({_process(process)})" for process in finding.same if process.kind == "process"]
            return f"{where} in a process{''.join(young)} started less than {value} s earlier", echo
        case "destination":
            return f"were due at {value}", "were"
        case "time":
            return f"{where} {_stretch(finding.value)}", echo
        case "second":
            first, last = finding.value.split("-")
            seconds = f"second {first}" if first == last else f"seconds {first} to {last}"
            return f"have event times in {seconds} of the minute", "have"
        case "prefix":
            return f"have ids that start with {value!r}", "have"


def _stretch(value: str) -> str:
    first, last = (fmt.datetime_of(int(second)) for second in value.split("-"))
    until = f"{last:%H:%M:%S}" if first.date() == last.date() else f"{last:%Y-%m-%d %H:%M:%S}"
    return f"from {first:%Y-%m-%d %H:%M:%S} to {until} UTC"


def _process(finding: Finding) -> str:
    """Name a process, with its host and labels."""
    emitter = finding.emitter
    if emitter is None:
        return finding.value[:8]
    details = [f"{_name(name)} {_name(value)}" for name, value in emitter.labels.items()]
    inputs = [f"input {_name(trait.value)}" for trait in finding.same if trait.kind == "input"]
    more = ", ".join([*inputs, *details])
    return _name(emitter.host or finding.value[:8]) + (f" ({more})" if more else "")


def _start_and_end(finding: Finding) -> str:
    """Return when the process started and ended, where that is near to the bad messages."""
    emitter = finding.emitter
    if emitter is None or finding.first_ms is None or finding.last_ms is None:
        return ""
    started = _started(emitter, finding.first_ms)
    ended = _ended(emitter, finding.last_ms)
    both = " and ".join(part for part in (started, ended) if part)
    return f", which {both}" if both else ""


def _started(facts: EmitterFacts, first_ms: float) -> str:
    before_ms = first_ms - facts.started_at
    if not -1_000 <= before_ms <= RECENT_MS:
        return ""
    return f"started {fmt.duration(max(before_ms, 0.0))} before the first of them"


def _ended(facts: EmitterFacts, last_ms: float) -> str:
    if facts.ended_at is None or not -AROUND_MS <= facts.ended_at - last_ms <= AROUND_MS:
        return ""
    return f"{'closed' if facts.has_closed else 'last reported'} at {rfc3339(facts.ended_at // 1000)}"


def _place(label: str) -> str:
    return "the source, before the first checkpoint" if label == "source" else _name(label)


def _name(text: str) -> str:
    """Return a name that services send as one short line."""
    return one_line(text, MAX_CHARS)


def document(blame_: Blame, count: int | None = None) -> BlameDocument:
    """Return all that was found out as JSON has it."""
    return {
        "of": blame_.of,
        "count": count,
        "looked_at": blame_.bad,
        "compared_with": blame_.others,
        "places": [{"place": place, "share": round(share, 4)} for place, share in blame_.places[:10]],
        "conclusion": conclusion(blame_),
        "findings": [_finding(blame_.of, finding, is_rest=index > 0) for index, finding in enumerate(blame_.findings)],
        "text": text(blame_, count),
    }


def _finding(kind: Of, finding: Finding, *, is_rest: bool = False) -> FindingDocument:
    emitter = finding.emitter
    process: ProcessDocument | None = None
    if emitter is not None:
        process = {
            "emitter": finding.value,
            "host": emitter.host,
            "labels": dict(emitter.labels),
            "started_at": rfc3339(emitter.started_at / 1000),
            "ended_at": None if emitter.ended_at is None else rfc3339(emitter.ended_at / 1000),
        }
    return {
        "kind": finding.kind,
        "node": None if finding.kind == "destination" else finding.node,
        "name": finding.name or None,
        "value": finding.value,
        "destination": finding.destination,
        "process": process,
        "support": round(finding.support, 4),
        "base": round(finding.base, 4),
        "lift": None if finding.lift is None else round(finding.lift, 2),
        "count": finding.count,
        "of_the_rest": is_rest,
        "same": [_finding(kind, candidate) for candidate in finding.same],
        "within": [_finding(kind, candidate) for candidate in finding.within],
        "text": sentence(kind, finding, is_rest=is_rest),
    }
