"""The alerts page and the page of an incident in a real browser: what is shown, what operators do there."""

from __future__ import annotations
