"""The OpenID provider as authlib reaches it, and what of its metadata is trusted."""

from __future__ import annotations

import warnings
from typing import Any, Final

from authlib.deprecate import AuthlibDeprecationWarning

from lagloss_server.settings import Settings

try:  # authlib takes httpx2 where something has installed it, and lets its errors through
    from httpx2 import HTTPError
except ImportError:
    from httpx import HTTPError

with warnings.catch_warnings():
    # authlib prefers httpx2, a fork that nothing else here needs; until its version 2 it takes httpx as well
    warnings.simplefilter("ignore", AuthlibDeprecationWarning)
    from authlib.integrations.starlette_client import OAuth, OAuthError, StarletteOAuth2App

__all__ = ["HTTPError", "OAuthError", "ProviderError", "make_client", "trusted_metadata"]

TIMEOUT_S: Final = 10.0
SCOPE: Final = "openid profile email"
_METADATA: Final = "/.well-known/openid-configuration"
_ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "EdDSA", "Ed25519"}
)
"""Signatures that only the provider can make. A provider may list `none`, too, which needs no key."""
_SUPPORTED: Final = "id_token_signing_alg_values_supported"


class ProviderError(Exception):
    """The provider is not the one that the settings name, or cannot sign as it has to."""


def make_client(settings: Settings) -> Any:
    """Return the client; it asks the provider for nothing yet."""
    return OAuth().register(
        "lagloss",
        client_cls=StarletteOAuth2App,
        client_id=settings.oidc_client_id,
        client_secret=settings.oidc_client_secret,
        server_metadata_url=settings.oidc_issuer.rstrip("/") + _METADATA,
        client_kwargs={"scope": SCOPE, "code_challenge_method": "S256", "timeout": TIMEOUT_S},
    )


async def trusted_metadata(client: Any, settings: Settings) -> None:
    """Fetch the provider's metadata if they are not there, and leaves in them only signatures to be trusted.

    Raises:
        ProviderError: they are another issuer's (OpenID Connect Discovery 1.0, 4.3), or no signature is left.
        HTTPError, ValueError: they cannot be had.
    """
    metadata: dict[str, Any] = await client.load_server_metadata()
    if metadata.get("issuer") != settings.oidc_issuer:
        found = metadata.get("issuer")
        client.server_metadata.clear()  # else it would not be asked again
        raise ProviderError(f"expected issuer {settings.oidc_issuer} (LAGLOSS_OIDC_ISSUER), found {found}")
    offered = metadata.get(_SUPPORTED) or ["RS256"]
    metadata[_SUPPORTED] = [name for name in offered if name in _ALGORITHMS]
    if not metadata[_SUPPORTED]:
        raise ProviderError(f"expected ID tokens signed by one of {sorted(_ALGORITHMS)}, found {offered}")
