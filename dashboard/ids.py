"""The ids of the page's components."""

from __future__ import annotations

from enum import StrEnum


class Id(StrEnum):
    URL = "url"
    TICK = "tick"
    VIEW = "view"
    SCHEME = "scheme"
    SCHEME_TOGGLE = "scheme-toggle"
    PROVIDER = "provider"
    PIPELINE = "pipeline"
    RANGE = "range"
    PATH = "path"
    PATH_BOX = "path-box"
    NOTICE = "notice"
    FAILURES = "failures"
    INCIDENTS = "incidents"
    CONTENT = "content"
    HEADLINE = "headline"
    LAG = "lag"
    LOSS = "loss"
    LAG_DRAWN = "lag-drawn"
    LOSS_DRAWN = "loss-drawn"
    WINDOW_TITLE = "window-title"
    FOLLOW = "follow"
    WINDOW = "window"
    MISSING = "missing"
    MISSING_BOX = "missing-box"
    MISSING_TITLE = "missing-title"
