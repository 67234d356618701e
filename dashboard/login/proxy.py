"""Login by a proxy in front that names the user: its headers are believed, no other's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.requests import HTTPConnection
from starlette.routing import Route

from dashboard.login.groups import EVERYBODY, GroupRoles, listed
from dashboard.login.kinds import unauthorised
from dashboard.request.current_user import Person
from lagloss_server.base.settings import Settings
from lagloss_server.net.clients import is_within, parse_networks, peer
from lagloss_server.net.problem_details import Problem

_MAX_NAME_LENGTH: Final = 255


class ProxyLogin:
    """Who asks is in a header, their groups in another."""

    routes: Sequence[Route] = ()

    def __init__(self, settings: Settings) -> None:
        self._trusted = parse_networks(listed(settings.proxy_trusted))
        self._user_header = settings.proxy_user_header
        self._roles_header = settings.proxy_roles_header
        self._groups = GroupRoles.of(settings)

    async def person(self, connection: HTTPConnection) -> Person | None:
        if not is_within(peer(connection), self._trusted):
            raise Problem(403, "Not from the proxy", "expected a request from a proxy listed in LAGLOSS_PROXY_TRUSTED")
        names = connection.headers.getlist(self._user_header)
        if not names:
            return None
        name = _decoded(names[0])
        if len(names) > 1 or not 0 < len(name) <= _MAX_NAME_LENGTH or not name.isprintable():
            raise Problem(403, "Bad name", f"expected one header {self._user_header} with a printable name")
        summary = (_decoded(text) for text in connection.headers.getlist(self._roles_header))
        groups = frozenset(group for text in summary for group in listed(text)) - {EVERYBODY}
        role = self._groups.role(groups)
        if role is None:
            raise Problem(403, "Not allowed", f"{name} is not in a group with access. Ask an operator.")
        return Person(name, role, groups)

    def unauthorised(self, connection: HTTPConnection) -> Problem:
        return unauthorised(f"expected the header {self._user_header} from the proxy", "Proxy")


def _decoded(text: str) -> str:
    """Return a header's text: HTTP gives it as Latin-1, proxies write names in UTF-8."""
    return text.encode("latin-1").decode("utf-8", "replace").strip()
