"""The part of a Kubernetes cluster that Spark's scheduler uses: an API of pods, which allows what a Role allows, and a
node that runs a pod's container as a process of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse, StreamingResponse

from lagloss_server.ops.processes import LOOPBACK, choose_port
from tests.support.closers import wait_until

Pod = dict[str, Any]
_POLL_S = 0.05
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update"}
_ONE, _ALL = "/api/v1/namespaces/{namespace}/{resource}/{name}", "/api/v1/namespaces/{namespace}/{resource}"
_TERM = re.compile(r"([\w./-]+)(?:\s+in\s+\(([^)]*)\)|=+([^,]*))")


@dataclass
class Kubernetes:
    """The cluster's state; `run` is how its node starts a pod."""

    rules: list[dict[str, list[str]]]
    """Those of the Role: what may be done."""
    run: Callable[[Pod], subprocess.Popen[bytes]]
    url: str = ""
    pods: dict[str, Pod] = field(default_factory=dict)
    seen: list[Pod] = field(default_factory=list)
    """Every pod that was ever created, as it was asked for."""
    refused: list[str] = field(default_factory=list)
    """What was asked for and no rule allows."""
    _events: list[tuple[str, Pod]] = field(default_factory=list)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def kill(self, name: str) -> None:
        """Kill a pod's process: what happens when its node loses its power."""
        os.killpg(self._processes[name].pid, signal.SIGKILL)

    def running(self) -> list[str]:
        """The names of pods whose process runs."""
        return [name for name, process in list(self._processes.items()) if process.poll() is None]

    def allows(self, verb: str, resource: str) -> bool:
        """Whether a rule allows it; what is not is remembered."""
        allowed = any(verb in rule["verbs"] and resource in rule["resources"] for rule in self.rules)
        if not allowed:
            self.refused.append(f"{verb} {resource}")
        return allowed

    def create(self, pod: Pod) -> Pod | None:
        """Create a pod; None if there is one of that name."""
        with self._lock:
            name = pod["metadata"]["name"]
            if name in self.pods:
                return None
            self.seen.append(json.loads(json.dumps(pod)))
            pod["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": "2026-01-01T00:00:00Z"}
            pod["status"] = {"phase": "Pending"}
            self.pods[name] = pod
            self._record("ADDED", pod)
            return pod

    def delete(self, name: str) -> None:
        """Let the node end a pod."""
        with self._lock:
            pod = self.pods[name]
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self._record("MODIFIED", pod)

    def chosen(self, selector: str) -> list[Pod]:
        """The pods that a label selector means."""
        terms = {name: set((many or one).replace(" ", "").split(",")) for name, many, one in _TERM.findall(selector)}
        with self._lock:
            return [
                pod
                for pod in self.pods.values()
                if all(pod["metadata"].get("labels", {}).get(name) in values for name, values in terms.items())
            ]

    async def events(self, selector: str, ended: threading.Event) -> AsyncIterator[str]:
        """Yield what happens to such pods from now on."""
        at = len(self._events)
        while not ended.is_set():
            for kind, pod in self._events[at:]:
                at += 1
                labels = pod["metadata"].get("labels", {})
                if all(
                    labels.get(name) in set((many or one).replace(" ", "").split(","))
                    for name, many, one in _TERM.findall(selector)
                ):
                    yield json.dumps({"type": kind, "object": pod})
            await asyncio.sleep(_POLL_S)

    def work(self) -> None:
        """Do what the node has to do now."""
        with self._lock:
            for name, pod in list(self.pods.items()):
                if "spec" not in pod:  # the driver's, which a test runs
                    continue
                process = self._processes.get(name)
                if process is None:
                    process = self._processes[name] = self.run(pod)
                    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
                    self._become(pod, "Running", state)
                if "deletionTimestamp" in pod["metadata"]:
                    _end(process)
                    del self.pods[name]
                    self._record("DELETED", pod)
                elif process.poll() is not None and pod["status"]["phase"] == "Running":
                    phase = "Failed" if process.returncode else "Succeeded"
                    self._become(pod, phase, {"terminated": {"exitCode": abs(process.returncode)}})

    def close(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            _end(process)

    def _become(self, pod: Pod, phase: str, state: dict[str, Any]) -> None:
        container = pod["spec"]["containers"][0]
        status = {"name": container["name"], "image": container["image"], "imageID": "", "ready": phase == "Running"}
        statuses = [{**status, "restartCount": 0, "state": state}]
        pod["status"] = {"phase": phase, "podIP": LOOPBACK, "containerStatuses": statuses}
        self._record("MODIFIED", pod)

    def _record(self, kind: str, pod: Pod) -> None:
        pod["metadata"]["resourceVersion"] = str(len(self._events) + 1)
        self._events.append((kind, json.loads(json.dumps(pod))))


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def _status(code: int, reason: str) -> JSONResponse:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "code": code,
        "message": reason,
    }
    return JSONResponse(body, code)


def _app(cluster: Kubernetes, ended: threading.Event) -> FastAPI:
    app = FastAPI()

    @app.websocket(_ALL)
    async def watch(socket: WebSocket, resource: str, labelSelector: str = "") -> None:  # noqa: N803
        if not cluster.allows("watch", resource):
            await socket.close()
            return
        await socket.accept()
        try:
            async for event in cluster.events(labelSelector, ended):
                await socket.send_text(event)
        except (WebSocketDisconnect, RuntimeError):
            return

    @app.get(_ALL)
    async def list_all(resource: str, labelSelector: str = "", watch: bool = False) -> Response:  # noqa: N803
        if not cluster.allows("watch" if watch else "list", resource):
            return _status(403, "Forbidden")
        if watch:
            lines = (f"{event}\n" async for event in cluster.events(labelSelector, ended))
            return StreamingResponse(lines, media_type="application/json")
        items = cluster.chosen(labelSelector) if resource == "pods" else []
        return JSONResponse({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})

    @app.delete(_ALL)
    async def delete_all(resource: str, labelSelector: str = "") -> Response:  # noqa: N803
        if not cluster.allows("deletecollection", resource):
            return _status(403, "Forbidden")
        for pod in cluster.chosen(labelSelector) if resource == "pods" else ():
            cluster.delete(pod["metadata"]["name"])
        return JSONResponse({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    @app.post(_ALL)
    async def create(resource: str, request: Request) -> Response:
        if not cluster.allows("create", resource):
            return _status(403, "Forbidden")
        created = cluster.create(await request.json())
        return JSONResponse(created, 201) if created else _status(409, "AlreadyExists")

    @app.api_route(_ONE, methods=["GET", "DELETE", "PATCH", "PUT"])
    async def one(resource: str, name: str, request: Request) -> Response:
        verb = _VERBS.get(request.method, request.method.lower())
        if not cluster.allows(verb, resource):
            return _status(403, "Forbidden")
        pod = cluster.pods.get(name) if resource == "pods" else None
        if pod is None:
            return _status(404, "NotFound")
        if verb == "delete":
            cluster.delete(name)
        elif verb == "patch":
            pod["metadata"].setdefault("labels", {}).update((await request.json())["metadata"].get("labels", {}))
        return JSONResponse(pod)

    return app


@contextmanager
def kubernetes(
    rules: list[dict[str, list[str]]], run: Callable[[Pod], subprocess.Popen[bytes]]
) -> Iterator[Kubernetes]:
    """A cluster at `.url`, for as long as the block lasts."""
    port = choose_port("Kubernetes")
    cluster = Kubernetes(rules, run, f"http://{LOOPBACK}:{port}")
    ended = threading.Event()
    server = uvicorn.Server(
        uvicorn.Config(_app(cluster, ended), host=LOOPBACK, port=port, log_level="error", timeout_graceful_shutdown=1)
    )

    def work() -> None:
        while not ended.wait(_POLL_S):
            cluster.work()

    threads = [threading.Thread(target=target) for target in (server.run, work)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: server.started, 10, "for the API")
        yield cluster
    finally:
        ended.set()
        server.should_exit = True
        for thread in threads:
            thread.join()
        cluster.close()


def environment_of(pod: Pod, image: Mapping[str, str]) -> dict[str, str]:
    """The variables that a kubelet gives the pod's container, on top of its image's."""
    found = dict(image)
    for each in pod["spec"]["containers"][0]["env"]:
        if "value" in each:
            found[each["name"]] = each["value"]
        elif (path := each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")) == "status.podIP":
            found[each["name"]] = LOOPBACK
        elif path == "metadata.name":
            found[each["name"]] = pod["metadata"]["name"]
    return found


def started(pod: Pod, command: list[str | Path], folder: Path, image: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the pod's container as a process: the image's entrypoint `command` with the pod's arguments, in an empty
    folder, with no variable but those of the image and the pod."""
    folder.mkdir()
    container = pod["spec"]["containers"][0]
    with (folder.parent / f"{folder.name}.log").open("ab") as log:
        return subprocess.Popen(
            [*command, *container["args"]],
            cwd=folder,
            env=environment_of(pod, image),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
