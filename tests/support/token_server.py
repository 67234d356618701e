"""An OAuth 2 server that gives tokens by the client-credentials grant, and says by which keys they are signed."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import RSAKey

SECRET_OF = 'client "secret" of {}'
LIFETIME_S = 300


@contextmanager
def token_server(scope: str) -> Iterator[str]:
    """Its address. A client has to ask for `scope`; its secret is SECRET_OF its id, the subject of its tokens."""
    key = RSAKey.generate_key(2048, {"kid": "test", "use": "sig", "alg": "RS256"})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, {"keys": [key.as_dict(private=False)]})

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            kind, _, given = self.headers.get("Authorization", "").partition(" ")
            client, _, secret = base64.b64decode(given).decode().partition(":")
            is_right = kind == "Basic" and secret == SECRET_OF.format(client)
            if not is_right or form.get("grant_type") != ["client_credentials"] or form.get("scope") != [scope]:
                self.answer(401, {"error": "invalid_client"})
                return
            now = int(time.time())
            claims = {"sub": client, "iss": "lagloss-test", "aud": "kafka", "iat": now, "exp": now + LIFETIME_S}
            token = jwt.encode({"alg": "RS256", "kid": "test"}, claims | {"scope": scope}, key)
            self.answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": LIFETIME_S})

        def answer(self, status: int, document: object) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(10)
