"""Targets of pipelines as OpenSLO v1 objects: services, indicators, objectives and alert policies.

The specification: https://github.com/OpenSLO/OpenSLO. Indicators are queries of Prometheus on what the aggregator shows
of the newest closed window (docs/metrics.md), so bad messages are those that are so for certain.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from lagloss_server.base import format as fmt
from lagloss_server.base.yaml_files import write_documents
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.model.rule_places import of_pipeline, places_of
from lagloss_server.sums.error_budget import BUDGET_DAYS, BURN_SPANS, OBJECTIVES, BurnSpans, Objective, Target

API_VERSION: Final = "openslo/v1"
TARGET: Final = "lagloss"
"""Name of the notification target: who is notified, lagloss's own routes say."""
MAX_NAME: Final = 63
_HASHED: Final = 8
_LABEL_KEY: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")

Document = dict[str, Any]


def openslo(pipelines: Iterable[StoredPipeline]) -> list[Document]:
    """Return the objects of these pipelines, and what they share."""
    documents = [document for stored in pipelines for document in _of_pipeline(stored)]
    policies = [_policy(spans) for spans in BURN_SPANS]
    referenced = {
        policy["alertPolicyRef"] for document in documents for policy in document["spec"].get("alertPolicies", ())
    }
    used = [policy for policy in policies if policy["metadata"]["name"] in referenced]
    routes = "lagloss notifies, using the routes of its alerting file."
    target = _object("AlertNotificationTarget", TARGET, TARGET, {"description": routes, "target": TARGET})
    return [*documents, *used, *([target] if used else [])]


def as_yaml(documents: Iterable[Document]) -> str:
    """Return the objects as documents of one YAML file."""
    return write_documents(documents)


def _of_pipeline(stored: StoredPipeline) -> Iterator[Document]:
    definition, name = stored.definition, stored.name
    exact = [objective for objective in OBJECTIVES if not Target.of(stored.version, definition, 0, 1).budget(objective)]
    about = {"lagloss/pipeline": name, "lagloss/version": str(stored.version)}
    # an objective of 100 % cannot be said in OpenSLO, whose targets are below 1
    without = {"lagloss/targets-of-100-percent": ", ".join(exact)} if exact else {}
    yield _object(
        "Service",
        dns_name(name),
        name,
        {"description": definition.metadata.description[:1_050]},
        labels={key: value for key, value in definition.metadata.labels.items() if _LABEL_KEY.fullmatch(key)},
        annotations={**about, **without},
    )
    places = [place.name for place in places_of(definition.graph, "destination")]
    for destination in (None, *(places if len(places) > 1 else ())):
        target = Target.of(stored.version, definition, 0, 1, destination)
        for objective in OBJECTIVES:
            if target.budget(objective):
                yield from _objective(stored, destination, objective, target, about)


def _objective(
    stored: StoredPipeline, destination: str | None, objective: Objective, target: Target, about: dict[str, str]
) -> Iterator[Document]:
    """Return an objective and its indicator; burn rates are of the whole pipeline only."""
    name = dns_name(*(part for part in (stored.name, destination, objective) if part is not None))
    where = stored.name if destination is None else f"{stored.name}, destination {destination}"
    what = "messages not lost" if objective == "loss" else f"messages delivered within {fmt.duration(target.lag_ms)}"
    notes = about if destination is None else {**about, "lagloss/destination": destination}
    labels = {"pipeline": stored.name, **({} if destination is None else {"destination": destination})}
    indicator = {
        "description": f"Share of {what} in the newest closed minute.",
        "ratioMetric": _ratio(objective, labels),
    }
    yield _object("SLI", name, f"{where}: {what}", indicator, annotations=notes)
    spec: Document = {
        "description": f"{what[0].upper()}{what[1:]}.",
        "service": dns_name(stored.name),
        "indicatorRef": name,
        "timeWindow": [{"duration": f"{BUDGET_DAYS}d", "isRolling": True}],
        "budgetingMethod": "Occurrences",
        "objectives": [{"displayName": what, "target": float(1 - target.budget(objective))}],
    }
    if destination is None and _burns(stored, objective):
        spec["alertPolicies"] = [{"alertPolicyRef": _policy_name(spans)} for spans in BURN_SPANS]
    yield _object("SLO", name, f"{where}: {what}", spec, annotations=notes)


def _burns(stored: StoredPipeline, objective: Objective) -> bool:
    """Return whether alerting has rules of burn rates of this objective: its own rule is on."""
    alerts = stored.definition.spec.alerts
    own = alerts.loss if objective == "loss" else alerts.on_time
    return alerts.budget is not None and of_pipeline(own) is not None


def _ratio(objective: Objective, label_values: dict[str, str]) -> Document:
    """Return what is bad, or good, of what. Gauges hold for a minute each: their sums over time are in proportion."""

    def metric(name: str, **more: str) -> str:
        labels = ",".join(f"{label}={_quoted(value)}" for label, value in {**label_values, **more}.items())
        return f"sum({name}{{{labels}}})"

    is_one = "destination" in label_values
    if objective == "loss":
        lost, due = ("destination_lost", "destination_due") if is_one else ("window_lost", "window_messages")
        bad, total = f"lagloss_{lost}_messages", "lagloss_window_messages" if not is_one else f"lagloss_{due}_messages"
        return {"counter": False, "bad": _query(metric(bad, bound="min")), "total": _query(metric(total))}
    had_to_arrive = " - ".join(metric(f"lagloss_destination_{name}_messages") for name in ("due", "filtered", "dead"))
    share = metric(f"lagloss_{'destination' if is_one else 'window'}_on_time_ratio")
    return {"counter": False, "good": _query(f"{share} * ({had_to_arrive})"), "total": _query(had_to_arrive)}


def _query(query: str) -> Document:
    return {"metricSource": {"type": "Prometheus", "spec": {"query": query}}}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _policy_name(spans: BurnSpans) -> str:
    return f"lagloss-burn-rate-{spans.name}"


def _policy(spans: BurnSpans) -> Document:
    name, short = _policy_name(spans), f"{spans.short_s // 60}m"
    rule = f"The burn rate of the error budget is above {spans.times:g} over {spans.name} and over its last {short}."
    condition = {
        "kind": "burnrate",
        "op": "gt",
        "threshold": spans.times,
        "lookbackWindow": spans.name,
        "alertAfter": short,
    }
    inline = {
        "kind": "AlertCondition",
        "metadata": {"name": name, "displayName": f"Burn rate over {spans.name}"},
        "spec": {"description": rule, "severity": spans.severity, "condition": condition},
    }
    spec = {
        "description": f"{rule} OpenSLO supports one window, so alertAfter is the short one.",
        "alertWhenNoData": False,
        "alertWhenResolved": True,
        "alertWhenBreaching": True,
        "conditions": [inline],
        "notificationTargets": [{"targetRef": TARGET}],
    }
    return _object("AlertPolicy", name, f"Burn rate over {spans.name}", spec)


def _object(
    kind: str,
    name: str,
    display_name: str,
    spec: Document,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Document:
    metadata: Document = {"name": name, "displayName": display_name}
    metadata |= {"labels": labels} if labels else {}
    metadata |= {"annotations": dict(annotations)} if annotations else {}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def dns_name(*parts: str) -> str:
    """Return a name as RFC 1123 has labels, different for different parts: what had to be changed for it, or is of a
    destination, ends with a hash of the parts."""
    plain = "-".join(parts)
    name = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    if name == plain and len(name) <= MAX_NAME and len(parts) < 3:
        return name
    hashed = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:_HASHED]
    return f"{name[: MAX_NAME - _HASHED - 1].strip('-')}-{hashed}".lstrip("-")
