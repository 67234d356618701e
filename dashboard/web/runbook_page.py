"""Runbooks as pages that need nothing else: no script, no font, no style of the dashboard's."""

from __future__ import annotations

import html
from functools import cache
from typing import Final

from markdown_it import MarkdownIt

from dashboard.design import css_variables
from lagloss_server.incidents.runbooks import KINDS, runbook

_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 16px/1.55 var(--ll-font); max-width: 46rem; margin: 0 auto; padding: 1rem;
  color: var(--ll-text); background: var(--ll-ground); overflow-wrap: break-word; }
a { color: var(--ll-link); }
nav { font-size: 0.875rem; border-bottom: 1px solid var(--ll-border); padding-bottom: 0.5rem; }
nav a { margin-right: 0.75rem; display: inline-block; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 1.8rem; }
code { font: 0.875em var(--ll-mono); background: var(--ll-raised);
  padding: 0.1em 0.3em; border-radius: 3px; }
pre { background: var(--ll-raised); padding: 0.7rem; border-radius: 4px; overflow-x: auto; }
pre code { padding: 0; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: 0.35rem 0.7rem 0.35rem 0;
  border-bottom: 1px solid var(--ll-border); }
li { margin: 0.2rem 0; }
"""


@cache
def runbook_html(kind: str) -> str:
    """Return the page of a kind of incident.

    Raises:
        KeyError: there is no such kind.
    """
    text = runbook(kind)
    pages = "".join(f'<a href="/runbooks/{kind}">{kind}</a>' for kind in KINDS)
    title = html.escape(text.partition("\n")[0].removeprefix("# "))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title} · lagloss</title><link rel="icon" href="data:,">'
        f"<style>{css_variables()}{_STYLE}</style></head><body>"
        f'<nav><a href="/"><b>Dashboard</b></a>{pages}</nav><main>{_body(text)}</main></body></html>'
    )


def _body(text: str) -> str:
    """Return the Markdown as HTML. A page's links to its neighbours name their files, which are served without
    `.md`."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    for token in tokens:
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("href", str(child.attrGet("href")).removesuffix(".md"))
    return str(markdown.renderer.render(tokens, markdown.options, {}))
