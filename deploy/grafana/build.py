"""Writes the Grafana dashboards beside this file, which are changed here: `python -m deploy.grafana.build`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent
PROMETHEUS: Final = {"type": "prometheus", "uid": "${datasource}"}
INFINITY: Final = {"type": "yesoreyeram-infinity-datasource", "uid": "${datasource}"}
VERDICTS: Final = {0: ("idle", "gray"), 1: ("ok", "green"), 2: ("unknown", "yellow"), 3: ("loss", "red")}
WIDTH: Final = 24
Panel = dict[str, Any]


def main() -> None:
    """Write the dashboards."""
    for name, dashboard in dashboards().items():
        (FOLDER / f"{name}.json").write_text(json.dumps(dashboard, indent=1, ensure_ascii=False) + "\n", "utf-8")


def dashboards() -> dict[str, dict[str, Any]]:
    """Return the dashboards by the names of their files."""
    return {"overview": overview(), "pipeline": pipeline(), "groups": groups(), "read-api": read_api()}


def overview() -> dict[str, Any]:
    """Return the page of all pipelines."""
    panels = [
        verdicts("Verdicts", by_pipeline(verdict_of("")), width=WIDTH, height=8),
        series(
            "Certainly lost", "percentunit", [(by_pipeline('lagloss_window_loss_ratio{bound="min"}'), "{{pipeline}}")]
        ),
        series(
            "Possibly lost", "percentunit", [(by_pipeline('lagloss_window_loss_ratio{bound="max"}'), "{{pipeline}}")]
        ),
        series(
            "End-to-end lag, p95",
            "s",
            [(by_pipeline('lagloss_window_e2e_lag_seconds{percentile="p95"}'), "{{pipeline}}")],
        ),
        series("On time", "percentunit", [(by_pipeline("lagloss_window_on_time_ratio"), "{{pipeline}}")]),
        series("Messages per minute", "short", [(by_pipeline("lagloss_window_messages"), "{{pipeline}}")]),
        series(
            "Error budget left, at least",
            "percentunit",
            [
                (
                    'max by (pipeline, objective) (lagloss_error_budget_left_ratio{bound="min"})',
                    "{{pipeline}} {{objective}}",
                )
            ],
        ),
        series(
            "Newest closed minute ended",
            "s",
            [(by_pipeline("time() - lagloss_window_start_timestamp_seconds - 60"), "{{pipeline}}")],
        ),
        series("Waiting for a server", "s", [("max by (server) (lagloss_waiting_seconds)", "{{server}}")]),
    ]
    return dashboard("lagloss-overview", "lagloss: pipelines", panels, PROMETHEUS["type"], pipeline_query=None)


def pipeline() -> dict[str, Any]:
    """Return the page of one pipeline: the stacked lag of its hops, its losses, its destinations."""
    here = '{pipeline="$pipeline"}'
    lag_at = 'lagloss_destination_e2e_lag_seconds{pipeline="$pipeline", percentile="p95"}'
    hops = [
        ("max by (node) (lagloss_node_added_lag_seconds" + here + ")", "{{node}}"),
        ("max by (source, target) (lagloss_link_added_lag_seconds" + here + ")", "{{source}} → {{target}}"),
    ]
    panels = [
        verdicts("Verdict", by_pipeline(verdict_of('pipeline="$pipeline", ')), width=WIDTH, height=4),
        series("Lag added by each hop (p95)", "s", hops, width=WIDTH, height=11, stacked=True),
        series(
            "End-to-end lag",
            "s",
            [
                ("max by (percentile) (lagloss_window_e2e_lag_seconds" + here + ")", "{{percentile}}"),
                ("max by (percentile) (lagloss_sla_lag_target_seconds" + here + ")", "target of {{percentile}}"),
            ],
        ),
        series(
            "Lost share",
            "percentunit",
            [
                ("max by (bound) (lagloss_window_loss_ratio" + here + ")", "{{bound}}"),
                ("max(lagloss_sla_loss_max_ratio" + here + ")", "target"),
            ],
        ),
        series(
            "Certainly lost, by place",
            "short",
            [
                ('max by (node) (lagloss_node_lost_messages{pipeline="$pipeline", bound="min"}) > 0', "{{node}}"),
                (
                    'max by (source, target) (lagloss_link_lost_messages{pipeline="$pipeline", bound="min"}) > 0',
                    "{{source}} → {{target}}",
                ),
            ],
            bars=True,
        ),
        series(
            "Messages",
            "short",
            [
                (f"max(lagloss_window_{name}{here})", text)
                for name, text in (
                    ("messages", "messages"),
                    ("delivered_messages", "delivered"),
                    ("pending_messages", "pending"),
                    ("dead_messages", "dead-lettered"),
                    ("filtered_messages", "filtered"),
                )
            ],
        ),
        series(
            "Destinations: lag, p95",
            "s",
            [
                (
                    f"max by (destination) ({lag_at})",
                    "{{destination}}",
                )
            ],
        ),
        series(
            "Destinations: on time",
            "percentunit",
            [("max by (destination) (lagloss_destination_on_time_ratio" + here + ")", "{{destination}}")],
        ),
        series(
            "Nodes: process duration, p95",
            "s",
            [
                (
                    'max by (node) (lagloss_node_process_duration_seconds{pipeline="$pipeline", percentile="p95"})',
                    "{{node}}",
                )
            ],
        ),
        series(
            "Consumer lag",
            "short",
            [("sum by (node, group) (lagloss_consumer_lag_offsets" + here + ")", "{{node}} ({{group}})")],
        ),
        series(
            "Evidence complete",
            "short",
            [("max by (node) (lagloss_node_evidence_complete" + here + ")", "{{node}}")],
        ),
        series(
            "Error budget left",
            "percentunit",
            [("max by (objective, bound) (lagloss_error_budget_left_ratio" + here + ")", "{{objective}}, {{bound}}")],
        ),
    ]
    query = "label_values(lagloss_window_messages, pipeline)"
    return dashboard("lagloss-pipeline", "lagloss: one pipeline", panels, PROMETHEUS["type"], pipeline_query=query)


def groups() -> dict[str, Any]:
    """Return the page of all consumer groups, named by a definition or not: how far each is behind, and its risk."""
    of = '{cluster=~"$cluster", group=~"$group"}'
    legend = "{{group}} {{cluster}}"

    def worst(name: str) -> str:
        return f"max by (cluster, group) (lagloss_consumer_lag_{name}{of})"

    def total(name: str) -> str:
        return f"sum by (cluster, group) (max by (cluster, group, topic, partition) (lagloss_consumer_lag_{name}{of}))"

    panels = [
        series("Seconds behind, the ten worst", "s", [(f"topk(10, {worst('seconds')})", legend)], width=WIDTH),
        series("Offsets behind, the ten worst", "short", [(f"topk(10, {total('offsets')})", legend)]),
        series(
            "Status: 0 ok, 1 warning, 2 stalled, 3 stopped", "short", [(f"topk(10, {worst('status')} != 0)", legend)]
        ),
        series("Commits per second", "short", [(total("commits_per_second"), legend)]),
        series("Appends per second", "short", [(total("appends_per_second"), legend)]),
        series(
            "Partitions furthest behind",
            "s",
            [
                (
                    f"topk(10, max by (group, topic, partition) (lagloss_consumer_lag_seconds{of}))",
                    "{{group}} {{topic}}/{{partition}}",
                )
            ],
        ),
        series("Time until retention deletes unread messages", "s", [(to_loss(of), legend)]),
        series(
            "Deleted unread per minute",
            "short",
            [(f"60 * sum by (cluster, group) (rate(lagloss_consumer_lag_deleted_unread_total{of}[5m]))", legend)],
        ),
        series(
            "Members, of the groups of nodes",
            "short",
            [(f"max by (cluster, group) (lagloss_consumer_group_members{of})", legend)],
        ),
        series(
            "Rounds in which some lag could not be read",
            "short",
            [("sum(increase(lagloss_consumer_lag_failures_total[5m]))", "failures")],
        ),
    ]
    board = dashboard("lagloss-groups", "lagloss: consumer groups", panels, PROMETHEUS["type"], pipeline_query=None)
    for name, query in (
        ("cluster", "label_values(lagloss_consumer_lag_offsets, cluster)"),
        ("group", 'label_values(lagloss_consumer_lag_offsets{cluster=~"$cluster"}, group)'),
    ):
        board["templating"]["list"].append(
            {
                "name": name,
                "type": "query",
                "datasource": PROMETHEUS,
                "query": query,
                "refresh": 2,
                "sort": 1,
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
            }
        )
    return board


def to_loss(of: str) -> str:
    """Return the seconds until retention deletes an unread message, by group."""
    return f"min by (cluster, group) (lagloss_consumer_lag_loss_timestamp_seconds{of}) - time()"


def read_api() -> dict[str, Any]:
    """Return one pipeline from the read API: every minute as it is known today, revisions included."""
    share = [("loss_ratio.min", "certainly lost"), ("loss_ratio.max", "possibly lost"), ("on_time_share", "on time")]
    lag = [(f"e2e_lag_ms.{name}", name) for name in ("p50", "p95", "p99", "max")]
    counts = [(name, name) for name in ("messages", "delivered", "pending", "dead", "filtered")]
    panels = [
        windows("Shares", "percentunit", share, width=WIDTH),
        windows("End-to-end lag", "ms", lag),
        windows("Messages", "short", counts),
        windows("Windows", "short", [("verdict", "verdict"), *counts, *share], width=WIDTH, height=12, kind="table"),
    ]
    query = {
        "query": "",
        "queryType": "infinity",
        "infinityQuery": infinity("/api/v1/pipelines", [("name", "name", "string")], "table"),
    }
    return dashboard("lagloss-read-api", "lagloss: minute by minute", panels, INFINITY["type"], pipeline_query=query)


def by_pipeline(expression: str) -> str:
    """Return one series a pipeline, however many aggregators are scraped."""
    return f"max by (pipeline) ({expression})"


def verdict_of(labels: str) -> str:
    """Return the verdict as a number, a key of VERDICTS."""
    parts = (
        f'{number} * (lagloss_window_verdict{{{labels}lagloss_window_verdict="{name}"}} == 1)'
        for number, (name, _) in VERDICTS.items()
    )
    return " or ".join(parts)


def series(
    title: str,
    unit: str,
    queries: Sequence[tuple[str, str]],
    width: int = 12,
    height: int = 8,
    *,
    stacked: bool = False,
    bars: bool = False,
) -> Panel:
    """Return a chart over time of (PromQL, legend)."""
    custom = {
        "drawStyle": "bars" if bars else "line",
        "fillOpacity": 40 if stacked else 60 if bars else 0,
        "stacking": {"mode": "normal" if stacked or bars else "none", "group": "A"},
        "showPoints": "auto",
        "spanNulls": False,
    }
    return panel("timeseries", title, width, height, PROMETHEUS, unit, custom) | {
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": PROMETHEUS,
                "expr": query,
                "legendFormat": legend,
                "range": True,
            }
            for at, (query, legend) in enumerate(queries)
        ],
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def verdicts(title: str, query: str, width: int, height: int) -> Panel:
    """Return a timeline of verdicts, a row a pipeline."""
    found = panel("state-timeline", title, width, height, PROMETHEUS, "short", {"fillOpacity": 80, "lineWidth": 0})
    options = {str(number): {"text": text, "color": colour} for number, (text, colour) in VERDICTS.items()}
    found["fieldConfig"]["defaults"]["mappings"] = [{"type": "value", "options": options}]
    return found | {
        "targets": [
            {"refId": "A", "datasource": PROMETHEUS, "expr": query, "legendFormat": "{{pipeline}}", "range": True}
        ],
        "options": {
            "mergeValues": True,
            "showValue": "auto",
            "alignValue": "left",
            "rowHeight": 0.9,
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
            "tooltip": {"mode": "single", "sort": "none"},
        },
    }


def windows(
    title: str,
    unit: str,
    fields: Sequence[tuple[str, str]],
    width: int = 12,
    height: int = 9,
    kind: str = "timeseries",
) -> Panel:
    """Return a chart or a table of (field of a window, legend) from the read API."""
    url = "/api/v1/pipelines/${pipeline}/windows?from=${__from:date:iso}&to=${__to:date:iso}"
    columns = [("window_start", "time", "timestamp")]
    columns += [(name, text, "string" if name == "verdict" else "number") for name, text in fields]
    query = infinity(url, columns, "table" if kind == "table" else "timeseries")
    return panel(kind, title, width, height, INFINITY, unit, {}) | {
        "targets": [{"refId": "A", "datasource": INFINITY, **query}]
    }


def infinity(url: str, columns: Sequence[tuple[str, str, str]], form: str) -> dict[str, Any]:
    """Return a query of the Infinity data source; its own settings have the dashboard's address and login."""
    return {
        "type": "json",
        "source": "url",
        "parser": "backend",
        "format": form,
        "url": url,
        "url_options": {"method": "GET", "data": ""},
        "root_selector": "",
        "columns": [{"selector": name, "text": text, "type": kind} for name, text, kind in columns],
        "filters": [],
    }


def panel(
    kind: str, title: str, width: int, height: int, source: dict[str, str], unit: str, custom: dict[str, Any]
) -> Panel:
    """Return a panel without its queries; `dashboard` places it."""
    return {
        "type": kind,
        "title": title,
        "datasource": source,
        "gridPos": {"w": width, "h": height, "x": 0, "y": 0},
        "fieldConfig": {"defaults": {"unit": unit, "custom": custom}, "overrides": []},
    }


def dashboard(
    uid: str, title: str, panels: Sequence[Panel], source: str, pipeline_query: str | dict[str, Any] | None
) -> dict[str, Any]:
    """Return a dashboard with its panels placed from left to right, and the variables that they name."""
    x = y = row = 0
    for number, each in enumerate(panels, 1):
        place = each["gridPos"]
        if x + place["w"] > WIDTH:
            x, y, row = 0, y + row, 0
        each |= {"id": number, "gridPos": {**place, "x": x, "y": y}}
        x, row = x + place["w"], max(row, place["h"])
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "label": "data source", "type": "datasource", "query": source, "refresh": 1}
    ]
    if pipeline_query is not None:
        variables.append(
            {
                "name": "pipeline",
                "type": "query",
                "datasource": {"type": source, "uid": "${datasource}"},
                "query": pipeline_query,
                "refresh": 2,
                "sort": 1,
            }
        )
    return {
        "uid": uid,
        "title": title,
        "tags": ["lagloss"],
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": 39,
        "timezone": "browser",
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": variables},
        "annotations": {"list": []},
        "panels": list(panels),
    }


if __name__ == "__main__":
    main()
