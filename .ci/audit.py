"""Look for known vulnerabilities of the locked Python packages by pip-audit: `make audit`.

Ends with 1 if there are any beside those of known-vulnerabilities.toml, and with 0, saying so, where no service with
advisories can be reached: OSV (LAGLOSS_OSV_URL names a mirror), else the package index.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
LOCK: Final = HERE.parent / "requirements-dev.txt"
IGNORED: Final = HERE / "known-vulnerabilities.toml"
OSV: Final = os.environ.get("LAGLOSS_OSV_URL", "https://api.osv.dev/v1/query")
SERVICES: Final = (("osv", "--osv-url", OSV), ("pypi",))


@dataclass(frozen=True)
class Ignored:
    """A vulnerability that does not concern lagloss, for a reason that is looked at again on a day."""

    id: str
    reason: str
    until: date


def read_ignored(path: Path) -> list[Ignored]:
    """Return the ignored vulnerabilities of a file."""
    return [Ignored(**each) for each in tomllib.loads(path.read_text()).get("ignored", [])]


def audited(service: Sequence[str], lock: Path) -> list[dict[str, Any]] | str:
    """Return pip-audit's packages with their vulnerabilities, or its last line if it came to no answer."""
    command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", *service, "--requirement", lock]
    options = ["--require-hashes", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return (done.stderr.strip() or f"pip-audit ended with {done.returncode}").splitlines()[-1]
    return found


def answers(service: Sequence[str], lock: Path) -> bool:
    """Return whether the service knows anything, by asking about the first package of a lock."""
    lines = lock.read_text().splitlines()
    first = next(at for at, line in enumerate(lines) if "==" in line)
    ends = next(at for at in range(first, len(lines)) if not lines[at].endswith("\\"))
    with tempfile.TemporaryDirectory() as folder:
        one = Path(folder) / "one.txt"
        one.write_text("\n".join(lines[first : ends + 1]) + "\n")
        found = audited(service, one)
    return not isinstance(found, str) and any("skip_reason" not in each for each in found)


def findings(packages: Sequence[dict[str, Any]], ignored: Sequence[Ignored], today: date) -> Iterator[str]:
    """Yield a line for each vulnerability that is not ignored, or no longer."""
    reasons = {each.id: each for each in ignored}
    for package in packages:
        for each in package.get("vulns", []):
            known = next((reasons[name] for name in (each["id"], *each["aliases"]) if name in reasons), None)
            if known is None or known.until <= today:
                fixed = ", ".join(each["fix_versions"]) or "no version"
                again = "" if known is None else f"; ignored until {known.until}: {known.reason}"
                yield f"{package['name']} {package['version']}: {each['id']}, fixed in {fixed}{again}"


def main(lock: Path = LOCK, ignored: Path = IGNORED) -> int:
    """Print what is found; return the exit code."""
    service = next((service for service in SERVICES if answers(service, lock)), None)
    if service is None:
        print("audit: not done, no service with advisories can be reached from here")  # noqa: T201
        return 0
    packages = audited(service, lock)
    if isinstance(packages, str):
        print(f"audit: {service[0]} stopped answering: {packages}")  # noqa: T201
        return 2
    skipped = [f"{each['name']}: {each['skip_reason']}" for each in packages if "skip_reason" in each]
    found = [*findings(packages, read_ignored(ignored), datetime.now(UTC).date()), *skipped]
    for line in found:
        print(f"audit: {line}")  # noqa: T201
    print(f"audit: {len(packages)} packages looked up at {service[0]}, {len(found)} findings")  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
