"""What a run asks of Airflow's REST API: runs, reruns and back-fills of one DAG."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Self
from urllib.parse import quote

import httpx2

RunState = Literal["queued", "running", "success", "failed"]


@dataclass(frozen=True, slots=True)
class AirflowRun:
    """A DAG run; `hour` is the start of its data interval (epoch s), None where it has none."""

    run_id: str
    state: RunState
    hour: int | None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        start = document["data_interval_start"]
        return cls(
            document["dag_run_id"],
            document["state"],
            None if start is None else int(datetime.fromisoformat(start).timestamp()),
        )


class AirflowApi:
    """A client of one DAG. Methods raise httpx2.HTTPError where Airflow refuses or is away."""

    def __init__(self, url: str, user: str, password: str, dag: str) -> None:
        self._client = httpx2.Client(base_url=url, timeout=20, auth=TokenAuth(url, user, password))
        self._dag = dag

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def runs(self) -> list[AirflowRun]:
        """Return the newest 100 runs, in the order of their hours."""
        answer = self._ask("GET", f"dags/{self._dag}/dagRuns?limit=100&order_by=-logical_date")["dag_runs"]
        return sorted(map(AirflowRun.of, answer), key=lambda run: run.hour or 0)

    def rerun(self, run_id: str, *, only_failed: bool = False) -> None:
        """Clear a run's tasks, or those that failed and what follows them, so that they run again."""
        body = {"dry_run": False, "only_failed": only_failed}
        self._ask("POST", f"dags/{self._dag}/dagRuns/{quote(run_id, safe='')}/clear", body)

    def backfill(self, from_s: int, to_s: int) -> None:
        """Create runs for the hours that start within [from, to) (epoch s) and have none."""
        body = {"dag_id": self._dag, "from_date": _moment(from_s), "to_date": _moment(to_s - 1), "max_active_runs": 1}
        self._ask("POST", "backfills", body)

    def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        answer: dict[str, Any] = self._client.request(method, f"/api/v2/{path}", json=body).raise_for_status().json()
        return answer


class TokenAuth(httpx2.Auth):
    """Sends a token, which is drawn with a password, and anew when it has expired."""

    requires_response_body = True

    def __init__(self, url: str, user: str, password: str) -> None:
        self._url = f"{url}/auth/token"
        self._login = {"username": user, "password": password}
        self._token = ""

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = f"Bearer {self._token}"
        if self._token and (yield request).status_code != httpx2.codes.UNAUTHORIZED:
            return
        answer = yield httpx2.Request("POST", self._url, json=self._login)
        self._token = answer.raise_for_status().json()["access_token"]
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request


def _moment(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat()
