"""Parts of a pipeline's page beside its figures: the verdict now, its numbers, and captions."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter

import dash_mantine_components as dmc
from dash import html

from dashboard import format as words
from dashboard.figures.flow_graph import describe_link, describe_node, lost_words
from dashboard.format import VERDICTS
from dashboard.pages.base import DATED_S, Part, badge, faint, moment
from dashboard.pages.breakdown import destinations, sides, source_choice, source_of, sources
from dashboard.pages.pipeline.tables import PERIODS, lost_share
from dashboard.queries.buckets import Bucket, knows_messages
from dashboard.queries.condition import Condition
from dashboard.queries.consumer_lag import ConsumerLag
from dashboard.queries.overview import LOOKED_BACK_S
from dashboard.queries.panels import Panels
from dashboard.queries.series import Series
from dashboard.queries.sla_periods import SlaPeriods, is_held, target_percentile
from dashboard.request import links
from dashboard.request.links import Address
from dashboard.request.zones import Zone, utc
from lagloss.wire.format import WINDOW_S
from lagloss_server.base import format as fmt
from lagloss_server.model.definition import Definition, Sla
from lagloss_server.model.graph import Graph
from lagloss_server.model.place import node_label
from lagloss_server.model.window import ListedWindow, LossRatio


def flow_list(graph: Graph, total: Bucket | None) -> Part:
    """Return the graph of the flow as a list of nodes, each with the links that leave it: for narrow screens."""
    return html.Ul([_flow_item(node, graph, total) for node in graph.nodes], className="flow-list")


def _flow_item(node: str, graph: Graph, total: Bucket | None) -> Part:
    links_ = [
        html.Li([f"→ {link.target} ", *_flow_words(describe_link(link.source, link.target, total), link.label, total)])
        for link in graph.links
        if link.source == node
    ]
    name = html.Span(node, className="flow-node")
    words_ = _flow_words(describe_node(node, graph, total), node_label(node), total)
    return html.Li([name, " ", *words_, html.Ul(links_) if links_ else None])


def _flow_words(summary: list[str], label: str, total: Bucket | None) -> list[Part]:
    lost = None if total is None else total.lost_at.get(label)
    loss = [" ", html.Span(f"✖ {lost_words(lost)}", className="lossy")] if lost is not None else []
    return [html.Span(" ".join(summary), className="faint"), *loss]


def headline(panels: Panels, address: Address, now_s: float) -> Part | None:
    """Return the verdict of the newest closed minute in a sentence, how fresh it is, and its numbers."""
    newest = panels.newest
    if newest is None:
        return None
    sla, start_s, names = panels.newest_sla, newest.start_s, panels.stored.definition.graph.sources
    look = VERDICTS[words.verdict_of(newest)]
    closed_ago = fmt.ago(now_s - words.parse_utc_s(newest.closed_at)) if newest.closed_at else fmt.NOTHING
    name = panels.stored.name
    fresh = [
        dmc.Anchor(
            moment(address.zone.minute(start_s), utc(start_s)),
            href=address.to(links.window(name, start_s)).href,
            size="sm",
        ),
        f" · closed {closed_ago} · read at {address.zone.clock(now_s, seconds=True)} {address.zone.label(now_s)}",
        f" · {panels.fresh.reporting} of {panels.fresh.emitters} emitters reporting" if panels.fresh.emitters else "",
    ]
    summary = [
        dmc.Text(_since(panels, newest, address.zone, now_s), fw=650, fz=18, lh=1.3),
        dmc.Text(words.verdict_sentence(newest, sla.loss.max), fw=500),
        dmc.Text(fresh, size="sm", className="faint"),
    ]
    verdict = badge(look.word, look.icon, look.colour, size="xl")
    tiles = [_tile(*tile) for tile in _tiles(newest, sla)]
    return dmc.Paper(
        [
            html.Div([verdict, html.Div(summary, className="grows")], className="said"),
            dmc.SimpleGrid(tiles, cols={"base": 2, "sm": 4}, mt="sm", spacing="sm"),
            destinations(newest, sla),
            *_by_commit(panels.stored.definition),
            sources(newest, sla),
            sides(newest),
            source_choice(address, names, source_of(address, names)),
        ],
        p="sm",
        withBorder=True,
    )


def _since(panels: Panels, newest: ListedWindow, zone: Zone, now_s: float) -> list[Part]:
    """Return since when the newest verdict has held without a break, and until when, if it does not describe the
    present."""
    end_s, since_s = newest.start_s + WINDOW_S, panels.since_s
    until = "" if panels.condition in (Condition.FINE, Condition.IDLE) else f" until {_clock(end_s, zone, now_s)}"
    if since_s is None:
        return [f"for more than {fmt.duration_s(LOOKED_BACK_S)}{until}"]
    since = moment(_clock(since_s, zone, now_s), utc(since_s))
    return ["since ", since, until or f", for {fmt.duration_s(end_s - since_s)}"]


def _clock(at_s: float, zone: Zone, now_s: float) -> str:
    return zone.clock(at_s, date=now_s - at_s > DATED_S)


def _by_commit(definition: Definition) -> list[Part]:
    return [dmc.Text(line, size="sm", mt=6) for line in fmt.delivered_by_commit(definition.committed_by)]


def _tiles(newest: ListedWindow, sla: Sla) -> list[tuple[str, str, str]]:
    """(title, value, what it stands beside) of the newest closed minute."""
    e2e, percentile = newest.e2e_lag_ms, target_percentile(sla.lag)
    is_known = knows_messages(newest.messages, [words.verdict_of(newest)])
    ends = [f"{fmt.count(getattr(newest, kind))} {kind}" for kind in ("delivered", "filtered", "dead", "pending")]
    judged = "" if is_held(sla.lag) else ", measured by the on-time share"
    target = f"SLA {fmt.percentile(sla.lag.percentile)} ≤ {fmt.duration(sla.lag.target)}{judged}"
    lag_target = f"{target} · max {fmt.duration(e2e.max)}"
    return [
        ("Loss", fmt.percent_interval(newest.loss_ratio), f"target ≤ {fmt.percent(sla.loss.max)}"),
        (f"E2E lag {percentile}", fmt.duration(getattr(e2e, percentile)), lag_target),
        ("On time", fmt.percent(newest.on_time_share), f"delivered within {fmt.duration(sla.lag.target)}"),
        ("Messages", fmt.count(newest.messages), " · ".join(ends))
        if is_known
        else ("Messages", fmt.NOTHING, "unknown, no reports"),
    ]


def _tile(title: str, value: str, beside: str) -> Part:
    texts = [
        faint(title),
        html.Div(value, className="tile-value"),
        faint(beside),
    ]
    return dmc.Paper(texts, p="xs", className="tile")


def caption(panels: Panels, address: Address) -> list[Part]:
    """Return the panels in words, and the way to what they have no room for."""
    more = panels.happenings.more_incidents
    source = source_of(address, panels.stored.definition.graph.sources)
    summary = "" if source is None else f"messages, loss and E2E lag of {source}; verdicts and hops of all messages; "
    summary += describe_panels(panels.series, panels.sla_periods, address.zone) + describe_consumer_lag(
        panels.consumer_lag, address.zone
    )
    if not more:
        return [summary]
    href = address.to(links.ALERTS, pipeline=panels.stored.name, tab="history").href
    link = dmc.Anchor(f"and {fmt.count(more)} more", href=href, inherit=True)
    shown = fmt.count(len(panels.happenings.incidents))
    return [f"{summary}; {shown} incidents shown, critical first, then newest: ", link]


def describe_panels(series: Series, sla_periods: SlaPeriods, zone: Zone) -> str:
    """Describe the panels for screen readers."""
    buckets = series.buckets
    if not buckets:
        return "no data for this range"
    verdicts: Counter[str] = Counter()
    for bucket in buckets:
        verdicts.update(bucket.verdicts)
    parts = [", ".join(f"{fmt.count(verdicts[key])} {look.word}" for key, look in VERDICTS.items() if verdicts[key])]
    lagging = max(buckets, key=lambda bucket: sla_periods.lag_ms(bucket) or 0.0)
    if (lag_ms := sla_periods.lag_ms(lagging)) is not None:
        moment = zone.clock(lagging.start_s, date=True)
        parts.append(f"highest E2E {sla_periods.percentile(lagging)} {fmt.duration(lag_ms)} at {moment}")
    lossy = max(buckets, key=lost_share)
    if lost_share(lossy) > (0.0, 0.0):
        low, high = lost_share(lossy)
        summary = fmt.percent_interval(LossRatio(low, high))
        parts.append(f"highest loss {summary} at {zone.clock(lossy.start_s, date=True)}")
    minutes = sum(verdicts.values())
    what = fmt.counted(minutes, "minute")
    if series.bucket_s > WINDOW_S:
        number = len(buckets)
        what += f" in {fmt.counted(number, PERIODS[series.bucket_s])}"
    return f"{what}: {'; '.join(parts)}"


def describe_consumer_lag(lag: ConsumerLag, zone: Zone) -> str:
    """Return the highest of any node, and the groups of which nothing is known."""
    lagging = [
        (bucket.offsets_max, group.node, bucket)
        for group, buckets in lag.series.items()
        for bucket in buckets
        if bucket.offsets_max is not None
    ]
    summary = ""
    if lagging:
        offsets, node, bucket = max(lagging, key=itemgetter(0))
        behind = f" ({fmt.duration(bucket.behind_max_ms)} behind)" if offsets else ""
        moment = zone.clock(bucket.start_s, date=True)
        summary = f"; highest consumer lag {fmt.count(offsets)}{behind} of {node} at {moment}"
    unknown = lag.watched.items() - {(group.node, group.group) for group in lag.series}
    if unknown:
        named = ", ".join(f"{group} ({node})" for node, group in lag.watched.items() if (node, group) in unknown)
        summary += f"; consumer lag unknown for {named}"
    return summary
