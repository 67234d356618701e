"""The design system: colours have one home, are readable in both schemes, and verdicts differ for everybody."""

from __future__ import annotations

import re
from dataclasses import fields
from itertools import combinations
from pathlib import Path

import pytest

import dashboard
from dashboard.design import DARK, LIGHT, NODE_HUES, Palette, css_variables, translucent

ROOT = Path(dashboard.__file__).parent
VERDICTS = ("ok", "loss", "unknown", "idle")


def luminance(colour: str) -> float:
    """WCAG's relative luminance of `#rrggbb`."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("of", [LIGHT, DARK], ids=["light", "dark"])
def test_text_is_readable_on_what_it_stands_on(of: Palette) -> None:
    for text in (of.text, of.dim, of.link, of.lossy):
        assert min(contrast(text, of.ground), contrast(text, of.raised)) >= 4.5, text
    for mark in (of.target, of.ok, of.loss, of.unknown, of.idle, of.open, of.warning):
        assert contrast(mark, of.ground) >= 3.0, mark
    for badge in (of.ok, of.loss, of.unknown, of.idle, of.open, of.warning):
        assert contrast(of.ground, badge) >= 4.5, f"text in the ground's colour on {badge}"


@pytest.mark.parametrize("of", [LIGHT, DARK], ids=["light", "dark"])
def test_verdicts_are_no_two_the_same_colour(of: Palette) -> None:
    assert len({getattr(of, verdict) for verdict in VERDICTS}) == len(VERDICTS)


def test_hues_of_nodes_are_seen_in_both_schemes() -> None:
    assert all(min(contrast(hue, LIGHT.ground), contrast(hue, DARK.ground)) >= 2.5 for hue in NODE_HUES)
    assert all(one != other for one, other in combinations(NODE_HUES, 2))


def test_no_other_file_names_a_colour() -> None:
    named = [
        f"{path.relative_to(ROOT)}: {found}"
        for pattern in ("*.py", "*.css", "*.html", "*.j2")
        for path in ROOT.rglob(pattern)
        if "vendor" not in path.parts and path.name != "design.py"
        for found in re.findall(r"#[0-9a-fA-F]{6}\b|#[0-9a-fA-F]{3}\b(?=[;, )])", path.read_text("utf-8"))
    ]
    assert named == []


def test_each_role_is_a_variable_of_css() -> None:
    found = css_variables()
    assert all(f"--ll-{each.name}: light-dark(" in found for each in fields(Palette))
    assert "light-dark" not in css_variables(LIGHT)
    assert LIGHT.text in css_variables(LIGHT)


def test_a_colour_can_be_seen_through() -> None:
    assert translucent("#102030", 0.5) == "rgba(16,32,48,0.5)"
