"""Random pipeline definitions: the shapes that the rules speak of, and a second version of each."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from tests.oracle.evidence import cut

Document = dict[str, Any]
PIPELINE = "clicks"


def node(name: str, *to: str, **more: str) -> Document:
    return {"name": name, **({"to": list(to)} if to else {}), **more}


def chain(rng: random.Random) -> list[Document]:
    names = ["src", "mid", "norm", "geo", "snk"][: rng.choice([2, 3, 3, 4, 5])]
    return [node(name, *names[i + 1 : i + 2]) for i, name in enumerate(names)]


def alone(_: random.Random) -> list[Document]:
    return [node("src")]


def routed(rng: random.Random) -> list[Document]:
    nodes = [node("src", "router"), node("router", "ga", "fb"), node("ga"), node("fb")]
    return [*nodes[:3], node("fb", "store"), node("store")] if rng.random() > 0.5 else nodes


def copied(rng: random.Random) -> list[Document]:
    nodes = routed(rng)
    nodes[1]["copy"] = "all"
    return nodes


def diamond(rng: random.Random) -> list[Document]:
    nodes = [node("src", "left", "right"), node("left", "join"), node("right", "join")]
    return nodes + ([node("join", "snk"), node("snk")] if rng.random() > 0.5 else [node("join")])


def copied_diamond(rng: random.Random) -> list[Document]:
    nodes = diamond(rng)
    nodes[0]["copy"] = "all"
    return nodes


def short_cut(rng: random.Random) -> list[Document]:
    """A long way and a short one that meet again, and a choice after that."""
    more: Document = {"copy": "all"} if rng.random() > 0.5 else {}
    return [node("src", "via", "join", **more), node("via", "join"), node("join", "ga", "fb"), node("ga"), node("fb")]


def two_layers(rng: random.Random) -> list[Document]:
    """A copy, and below it a choice that meets again."""
    more: Document = {"copy": "all"} if rng.random() > 0.5 else {}
    return [
        node("src", "left", "right", copy="all"),
        node("left", "up", "down", **more),
        node("right", "join"),
        node("up", "join"),
        node("down", "join"),
        node("join"),
    ]


def retried(rng: random.Random) -> list[Document]:
    nodes = [node("src", "mid"), node("mid", "snk", retries="again"), node("snk")]
    return [*nodes, node("again")] if rng.random() > 0.5 else nodes


def shared_retrier(rng: random.Random) -> list[Document]:
    nodes = [node("src", "mid"), node("mid", "snk", retries="again"), node("snk", retries="again")]
    return [node("again"), *nodes] if rng.random() > 0.5 else nodes


def retried_diamond(rng: random.Random) -> list[Document]:
    """Branches that share a retrier, or have one each; the last node has its own."""
    nodes = [
        node("src", "left", "right"),
        node("left", "join", retries="again"),
        node("right", "join", retries=rng.choice(["again", "later"])),
        node("join"),
    ]
    if rng.random() > 0.5:
        nodes[0]["copy"] = "all"
    if rng.random() > 0.7:
        nodes[3]["retries"] = "later"
    return nodes


def merged(rng: random.Random) -> list[Document]:
    """Sources whose messages meet."""
    nodes = [node("web", "norm"), node("app", "norm"), node("norm", "snk"), node("snk")]
    return [node("till", "snk"), *nodes] if rng.random() > 0.5 else nodes


def merged_after_copy(rng: random.Random) -> list[Document]:
    """A source that copies or chooses, one that does not, and what they share."""
    more: Document = {"copy": "all"} if rng.random() > 0.5 else {}
    return [
        node("web", "left", "right", **more),
        node("app", "right"),
        node("left", "join"),
        node("right", "join"),
        node("join"),
    ]


def several_ways(rng: random.Random) -> list[Document]:
    """Sources of which each has a destination of its own, and one that they share."""
    return [node("web", "ga", "store"), node("app", "fb", "store"), node("ga"), node("fb"), node("store")]


def cut_chain(rng: random.Random) -> list[Document]:
    """A node that makes new ids between others, or at the end."""
    nodes = [node("src", "agg"), node("agg", "snk", ids="new", **contract(rng)), node("snk")]
    return nodes if rng.random() > 0.3 else [nodes[0], node("agg", ids="new", **contract(rng))]


def cut_twice(rng: random.Random) -> list[Document]:
    """Split after a junction of two sources, and aggregated on one of two branches."""
    return [
        node("web", "split"),
        node("app", "split"),
        node("split", "ga", "agg", ids="new", **contract(rng)),
        node("agg", "store", ids="new", **contract(rng)),
        node("ga"),
        node("store"),
    ]


def cut_beside(rng: random.Random) -> list[Document]:
    """A way around the cut: both sides are one."""
    return [node("src", "agg", "snk"), node("agg", "snk", ids="new", **contract(rng)), node("snk")]


def cut_retried(rng: random.Random) -> list[Document]:
    """A retrier before the cut, or one that nodes of both sides share, which makes them one."""
    kind = rng.choice(["split", "aggregate"])
    end = node("snk", retries="again") if rng.random() > 0.5 else node("snk")
    return [node("src", "agg"), node("agg", "snk", ids="new", contract=kind, retries="again"), end]


def contract(rng: random.Random) -> dict[str, str]:
    kind = rng.choice(["", "split", "aggregate"])
    return {"contract": kind} if kind else {}


def any_graph(rng: random.Random) -> list[Document]:
    names = ["src", "b", "c", "d", "e", "f"][: rng.randint(2, 6)]
    to: dict[str, list[str]] = {name: [] for name in names}
    for i, name in enumerate(names[1:], start=1):
        for before in rng.sample(names[:i], k=min(i, rng.choice([1, 1, 2]))):
            to[before].append(name)
    nodes = [node(name, *rng.sample(to[name], k=len(to[name]))) for name in names]
    for entry in nodes:
        if len(entry.get("to", [])) > 1 and rng.random() > 0.5:
            entry["copy"] = "all"
        if rng.random() > 0.85:
            entry["retries"] = "again"
    return nodes if rng.random() > 0.3 else [*nodes, node("till", rng.choice(names))]


TOPOLOGIES: dict[str, Callable[[random.Random], list[Document]]] = {
    "chain": chain,
    "alone": alone,
    "routed": routed,
    "copied": copied,
    "diamond": diamond,
    "copied_diamond": copied_diamond,
    "short_cut": short_cut,
    "two_layers": two_layers,
    "retried": retried,
    "shared_retrier": shared_retrier,
    "retried_diamond": retried_diamond,
    "merged": merged,
    "merged_after_copy": merged_after_copy,
    "several_ways": several_ways,
    "cut_chain": cut_chain,
    "cut_twice": cut_twice,
    "cut_beside": cut_beside,
    "cut_retried": cut_retried,
    "any_graph": any_graph,
}


def definition(topology: str, rng: random.Random) -> Document:
    """A document of that shape, its nodes in any order, some of the settings written and some left out."""
    nodes = TOPOLOGIES[topology](rng)
    if rng.random() > 0.6:
        rng.shuffle(nodes)
    spec: Document = {"nodes": nodes}
    if rng.random() > 0.5:
        spec["grace"] = rng.choice(["60s", "30s", "1m", "90s"])
    if rng.random() > 0.4:
        spec["maxWait"] = rng.choice(["15m", "2m", "150s", "1h", "90000ms"])
    if rng.random() > 0.3:
        spec["sla"] = {}
        if rng.random() > 0.3:
            spec["sla"]["loss"] = {"max": rng.choice([0.01, 0.1, 0.25, 0.5, 0.0])}
        if rng.random() > 0.3:
            spec["sla"]["lag"] = {"percentile": 95, "target": rng.choice(["5s", "1s", "500ms", "2s"])}
        if rng.random() > 0.5:
            spec["sla"]["staleness"] = {"max": "5m"}
    metadata = {"name": PIPELINE, "description": "random"}
    return {"apiVersion": "lagloss/v1", "kind": "Pipeline", "metadata": metadata, "spec": spec}


def delivering(document: Document) -> list[str]:
    entries = cut(document["spec"]["nodes"])
    retriers = {entry["retries"] for entry in entries if "retries" in entry}
    return [entry["name"] for entry in entries if not entry.get("to") and entry["name"] not in retriers]


def own_targets(document: Document, rng: random.Random) -> Document:
    """Targets of their own for some destinations."""
    kinds: list[Document] = [
        {"loss": {"max": 0.0}},
        {"loss": {"max": 0.3}},
        {"lag": {"percentile": 95, "target": "1s"}},
        {"loss": {"max": 0.1}, "lag": {"percentile": 95, "target": "30s"}},
    ]
    own = {name: rng.choice(kinds) for name in delivering(document) if rng.random() < 0.7}
    other = copy.deepcopy(document)
    other["spec"].setdefault("sla", {})["destinations"] = own
    return other


def extended(document: Document, name: str, rng: random.Random) -> Document:
    """A version with one node more."""
    other = copy.deepcopy(document)
    nodes: list[Document] = other["spec"]["nodes"]
    retriers = {entry["retries"] for entry in nodes if "retries" in entry}
    rng.choice([entry for entry in nodes if entry["name"] not in retriers]).setdefault("to", []).append(name)
    nodes.append(node(name))
    return without_lost_targets(other)


def tapped(document: Document, rng: random.Random) -> Document:
    """The same graph, some of its nodes tapped."""
    source = {"topic": "t", "id": "$.id", "eventTime": "timestamp"}
    table = {"database": "shop", "table": "a.b", "id": "id", "eventTime": "at", "cursor": "n"}
    other = copy.deepcopy(document)
    nodes: list[Document] = other["spec"]["nodes"]
    retriers = {entry["retries"] for entry in nodes if "retries" in entry}
    for entry in nodes:
        if entry["name"] not in retriers and "ids" not in entry and rng.random() < 0.7:
            groups = [{"group": f"{entry['name']}-{name}", **source} for name in "gh"]
            entry["taps"] = {"in": rng.choice([*groups, table])}
    return other


def changed(document: Document, rng: random.Random) -> Document:
    """Another valid version: one thing is not the same."""
    other = copy.deepcopy(document)
    nodes: list[Document] = other["spec"]["nodes"]
    retriers = {entry["retries"] for entry in nodes if "retries" in entry}
    steps = [entry for entry in nodes if entry["name"] not in retriers]
    match rng.choice(["objective", "add", "add", "remove", "copy", "retries", "grace"]):
        case "objective":
            other["spec"].setdefault("sla", {})["loss"] = {"max": 0.3}
        case "grace":
            other["spec"]["grace"] = "45s"
        case "add":
            return extended(document, "added", rng)
        case "remove" if len(steps) > 1:
            gone = rng.choice([entry for entry in steps if "to" not in entry])
            nodes.remove(gone)
            for entry in nodes:
                if gone["name"] in entry.get("to", []):
                    entry["to"].remove(gone["name"])
                    if len(entry["to"]) < 2:
                        entry.pop("copy", None)
                    if not entry["to"]:
                        del entry["to"]
            forget_unused_retrier(nodes, gone.get("retries"))
            if not are_connected(nodes):
                return copy.deepcopy(document)
        case "copy" if any(len(entry.get("to", [])) > 1 for entry in steps):
            entry = rng.choice([entry for entry in steps if len(entry.get("to", [])) > 1])
            if "copy" in entry:
                del entry["copy"]
            else:
                entry["copy"] = "all"
        case _:
            entry = rng.choice([entry for entry in steps if "ids" not in entry])
            if "retries" in entry:
                forget_unused_retrier(nodes, entry.pop("retries"))
            else:
                entry["retries"] = rng.choice(["again", "other"])
    return without_lost_targets(other)


def without_lost_targets(document: Document) -> Document:
    """The same one, with objectives for none but its destinations."""
    own = document["spec"].get("sla", {}).get("destinations", {})
    for name in own.keys() - set(delivering(document)):
        del own[name]
    return document


def forget_unused_retrier(nodes: list[Document], retrier: str | None) -> None:
    """A retrier that nobody names any more would be a second node without incoming link."""
    if not any(entry.get("retries") == retrier for entry in nodes):
        nodes[:] = [entry for entry in nodes if entry["name"] != retrier]


def are_connected(nodes: list[Document]) -> bool:
    """Whether links, in whichever direction, lead from any node that is no retrier to all others."""
    retriers = {entry.get("retries") for entry in nodes}
    to = {entry["name"]: set(entry.get("to", [])) for entry in nodes if entry["name"] not in retriers}
    found, waiting = set[str](), list(to)[:1]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [other for other in to if other in to[name] or name in to[other]]
    return found == set(to)


class Net:
    """Just enough of a document to let messages walk through it."""

    def __init__(self, document: Document) -> None:
        entries = {entry["name"]: entry for entry in cut(document["spec"]["nodes"])}
        self.new_ids = {name for name, entry in entries.items() if "ids" in entry}
        self.takes_in = {name for name in self.new_ids if "contract" not in entries[name]}
        self.retrier = {name: entry["retries"] for name, entry in entries.items() if "retries" in entry}
        self.retriers = list(dict.fromkeys(self.retrier.values()))
        self.steps = [name for name in entries if name not in self.retriers]
        self.to: dict[str, list[str]] = {name: entries[name].get("to", []) for name in self.steps}
        self.copies = {name for name in self.steps if "copy" in entries[name]}
        self.sources = [name for name in self.steps if not any(name in to for to in self.to.values())]
        self.entrances = [f"{name}.in" for name in self.sources]

    def out_for(self, name: str, following: str) -> str:
        return f"{name}.out:{following}" if len(self.to[name]) > 1 else f"{name}.out"

    def inputs(self, name: str) -> list[str]:
        """The nodes whose topics this one reads."""
        if name in self.retriers:
            return [user for user, retrier in self.retrier.items() if retrier == name]
        return [before for before in self.steps if name in self.to[before]]
