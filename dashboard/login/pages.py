"""The pages of the login as HTML that needs nothing else: no script, no file, nothing of Dash."""

from __future__ import annotations

from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from dashboard.design import css_variables
from lagloss_server.net.problem_details import Problem

_templates: Final = Environment(
    loader=PackageLoader("dashboard.login"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def password_page(next_path: str, *, name: str = "", problem: Problem | None = None) -> HTMLResponse:
    """Return the form for name and password; after a wrong one with what is wrong."""
    return _page("password.html", problem, next_path=next_path, name=name)


def provider_page(start_path: str, problem: Problem | None = None) -> HTMLResponse:
    """Return the link to the provider; after a refusal with its reason."""
    return _page("provider.html", problem, start_path=start_path)


def refusal_page(problem: Problem) -> HTMLResponse:
    """Why a person sees nothing here."""
    return _page("refused.html", problem)


def _page(template: str, problem: Problem | None, **values: str) -> HTMLResponse:
    document = problem.document if problem else None
    text = _templates.get_template(template).render(problem=document, design=Markup(css_variables()), **values)
    return HTMLResponse(text, problem.status if problem else 200, problem.headers if problem else None)
