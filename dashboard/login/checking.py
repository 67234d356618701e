"""Whether the settings of the login can be used, asked before the dashboard listens."""

from __future__ import annotations

from urllib.parse import urlsplit

from dashboard.login.groups import EVERYBODY, GroupRoles, listed
from lagloss_server.base.errors import BadLogin, OpenToAll, TeamsWithoutLogin
from lagloss_server.base.settings import Settings
from lagloss_server.net.clients import is_loopback, parse_networks
from lagloss_server.net.origins import origin_of


def check_binding(settings: Settings) -> None:
    """Return whether the dashboard may listen where it should.

    Raises:
        OpenToAll: others than this machine could reach it, and there is no login.
        BadLogin: a setting that the login needs is missing or makes no sense.
        TeamsWithoutLogin: there are teams, and nothing by which their members are known.
    """
    if not settings.login and not is_loopback(settings.bind_address):
        raise OpenToAll(address=settings.bind_address)
    try:
        networks = parse_networks(listed(settings.proxy_trusted))
    except ValueError as error:
        raise _bad(settings, "LAGLOSS_PROXY_TRUSTED", "networks such as 10.0.0.0/8", error) from error
    if settings.login == "proxy" and not networks:
        raise _bad(settings, "LAGLOSS_PROXY_TRUSTED", "the network of the proxy, such as 10.1.2.3/32")
    if settings.login == "proxy" and not settings.proxy_user_header:
        raise _bad(settings, "LAGLOSS_PROXY_USER_HEADER", "the header with the user's name")
    if settings.login == "oidc":
        _check_provider(settings)
    if settings.login in ("oidc", "proxy"):
        _check_groups(settings)
    if settings.access_file is not None:
        _check_teams(settings)


def _check_provider(settings: Settings) -> None:
    if not settings.oidc_client_id:
        raise _bad(settings, "LAGLOSS_OIDC_CLIENT_ID", "the client id issued by the provider")
    if not settings.oidc_client_secret:
        raise _bad(settings, "LAGLOSS_OIDC_CLIENT_SECRET", "the secret of this client")
    if not origin_of(settings.dashboard_url):
        expected = "the URL at which browsers reach the dashboard"
        raise _bad(settings, "LAGLOSS_DASHBOARD_URL", expected, settings.dashboard_url or "nothing")
    issuer = urlsplit(settings.oidc_issuer) if origin_of(settings.oidc_issuer) else None
    if issuer is None or (issuer.scheme != "https" and not is_loopback(issuer.hostname or "")):
        expected = "https://… of the provider; http:// on this machine only"
        raise _bad(settings, "LAGLOSS_OIDC_ISSUER", expected, settings.oidc_issuer or "nothing")


def _check_groups(settings: Settings) -> None:
    groups = GroupRoles.of(settings)
    if EVERYBODY in groups.operators:
        raise _bad(settings, "LAGLOSS_LOGIN_OPERATORS", "groups by name", EVERYBODY)
    if not groups.operators and not groups.viewers and not groups.by_teams:
        raise _bad(settings, "LAGLOSS_LOGIN_VIEWERS", "groups with read access, or * for all logged-in users")


def _check_teams(settings: Settings) -> None:
    if not settings.login:
        raise TeamsWithoutLogin(path=settings.access_file)
    if settings.login_viewers:
        expected = "no value with LAGLOSS_ACCESS_FILE, whose teams define who has access"
        raise _bad(settings, "LAGLOSS_LOGIN_VIEWERS", expected, settings.login_viewers)


def _bad(settings: Settings, variable: str, expected: str, value: object = "nothing") -> BadLogin:
    return BadLogin(login=settings.login, variable=variable, expected=expected, found=value)
