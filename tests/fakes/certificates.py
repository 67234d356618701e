"""Certificates made for a test, by openssl."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

from tests.programs import need


def certificate(folder: Path, name: str = "localhost") -> Path:
    """A file with a key and a certificate for this name and 127.0.0.1, signed by itself."""
    path, key = folder / "certificate.pem", folder / "key.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command = [need("openssl"), "req", "-x509", *curve, "-nodes", "-days", "2"]
    names = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1"]
    subprocess.run([*command, *names, "-keyout", str(key), "-out", str(path)], check=True, capture_output=True)
    path.write_text(path.read_text() + key.read_text())
    return path


def server_context(path: Path) -> ssl.SSLContext:
    """A server's TLS with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context
