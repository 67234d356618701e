"""What rules find of news alone, compared with what they find of all windows."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from alerting.rules import Rule, rules_of
from alerting.rules.habits import DAY_S, HOUR_S, QUARTER_S, Habits, HabitSeries
from alerting.rules.view import PipelineView
from tests.support.alert_views import defined, minute, view_of, window

ALERTS = """lag: [{}, {at: checkpoint=mid.in, target: 1s}, {at: node=mid, target: 2s}]
uncertainLoss: {over: 5m}
duplicates: on
deadLetters: [{over: 5m, breaches: 2, of: 3}]
filtered: on
volume: on
negativeLag: on"""
DEFINITION = defined(ALERTS)
SPAN = 90


def test_news_alone_shows_whether_there_is_a_breach_where_there_was_none() -> None:
    found = {"nothing": 0, "something": 0}
    for seed in range(10):
        chance = random.Random(seed)
        documents: dict[int, dict[str, Any]] = {}
        seen_from = chance.choice([0, 0, 20])
        quiet: set[str] = set()
        for step in range(40):
            changed = change(chance, documents, step)
            view = seen(documents, seen_from + step // 4)
            for rule in rules_of(DEFINITION):
                if rule.name in quiet:
                    news = replace(view, news_from_s=minute(min(changed)))
                    assert finds_nothing(rule, news) == finds_nothing(rule, view), (seed, step, rule.name)
                    found["nothing" if finds_nothing(rule, view) else "something"] += 1
            quiet = {rule.name for rule in rules_of(DEFINITION) if finds_nothing(rule, view)}
    assert min(found.values()) > 100, found


@pytest.mark.parametrize("news_from", [0, 30, 59, 60])
def test_what_is_found_of_news_is_found_of_all_windows_with_the_same_values(news_from: int) -> None:
    chance = random.Random(7)
    documents: dict[int, dict[str, Any]] = {}
    for step in range(60):
        change(chance, documents, step)
    view = seen(documents, 0)
    for rule in rules_of(DEFINITION):
        all_of, news = rule.assess(view), rule.assess(replace(view, news_from_s=minute(news_from)))
        assert news.breaches.items() <= all_of.breaches.items(), rule.name
        late = {start for start in all_of.breaches if start >= minute(news_from)}
        assert late <= news.breaches.keys(), rule.name
        assert set(news.good) <= set(all_of.good), rule.name


def test_without_news_no_window_counts_as_good() -> None:
    chance = random.Random(7)
    documents: dict[int, dict[str, Any]] = {}
    for step in range(60):
        change(chance, documents, step)
    view = seen(documents, 0)
    good = 0
    for rule in rules_of(DEFINITION):
        good += len(set(rule.assess(view).good) - {view.this_minute_s})
        assert set(rule.assess(replace(view, news_from_s=math.inf)).good) <= {view.this_minute_s}, rule.name
    assert good > 100


def finds_nothing(rule: Rule, view: PipelineView) -> bool:
    found = rule.assess(view)
    return not found.breaches and found.begun is None


def seen(documents: dict[int, dict[str, Any]], from_minute: int) -> PipelineView:
    at = minute(0)
    quarters = range((at - 7 * DAY_S) // QUARTER_S * QUARTER_S, at + 8 * HOUR_S, QUARTER_S)
    hours = range((at - 7 * DAY_S) // HOUR_S * HOUR_S, at + 8 * HOUR_S, HOUR_S)
    usual = Habits(
        HabitSeries(QUARTER_S, dict.fromkeys(quarters, 600.0)),
        {"filtered / messages": HabitSeries(HOUR_S, dict.fromkeys(hours, 0.05))},
    )
    return view_of(DEFINITION, documents, now_at=SPAN, seen_from_s=minute(from_minute), habits=usual)


def change(chance: random.Random, documents: dict[int, dict[str, Any]], step: int) -> set[int]:
    """Close a window, now and then some, revise an older one or take one out, as one that becomes history."""
    changed = {step}
    if chance.random() < 0.15:
        changed.add(chance.randrange(step + 1))
    bad = chance.choice([0.0, 0.02, 0.3])
    for at in changed:
        documents[at] = some_window(chance, at, bad)
    if chance.random() < 0.05 and step > 5:
        gone = chance.randrange(step)
        if documents.pop(gone, None) is not None:
            changed.add(gone)
    return changed


def some_window(chance: random.Random, at: int, bad: float) -> dict[str, Any]:
    def strikes() -> bool:
        return chance.random() < bad

    verdict = chance.choice(["loss", "unknown", "idle"]) if strikes() else "ok"
    messages = 0 if verdict == "idle" else chance.choice([10, 600, 700])
    lags = {
        "mid.in": 1_500.0 if strikes() else -900.0 if strikes() else 300.0,
        "mid.out": 5_000.0 if strikes() else 400.0,
        "snk.out": 9_000.0 if strikes() else 800.0,
    }
    found = window(
        DEFINITION,
        at,
        verdict,
        messages,
        messages // chance.choice([4, 60]) if verdict == "loss" else 0,
        lags_ms=lags if messages else {},
        reasons=("evidence:mid",) if verdict == "unknown" else (),
    )
    if strikes():
        found["dead"] = messages // 10
    if strikes():
        found["filtered"] = messages // 2
    if strikes() and messages:
        found["links"][0]["corrupted"] = 3
        found["checkpoints"][0]["duplicates"] = messages // 5
    if strikes() and verdict == "unknown":
        found["lost"] = {"min": 0, "max": messages // 5}
    if strikes() and verdict == "unknown":
        found["pending"] = messages // 10
    found["on_time_share"] = 0.5 if strikes() else found["on_time_share"]
    return found


def test_the_windows_that_are_assessed_again_are_few() -> None:
    documents = {at: window(DEFINITION, at) for at in range(SPAN)}
    view = replace(seen(documents, 0), news_from_s=minute(SPAN - 1))
    for rule in rules_of(DEFINITION):
        assert len(rule.assess(view).seen) < 30, rule.name
    assert np.isfinite(view.news_from_s)
