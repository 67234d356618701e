"""A shop that takes orders over HTTP, and a mailer that reads them from Kafka: two nodes in one program."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from pydantic import BaseModel

from lagloss.asgi import BeaconMiddleware
from lagloss.kafka import KafkaNode

TOPIC = "orders"


class Order(BaseModel):
    """Body of POST /orders."""

    number: int
    customer: str


def make_shop(bootstrap: str) -> FastAPI:
    """Make the web service, which answers once the order is on its way to the topic."""
    node = KafkaNode("orders", "shop", first=True)
    producer = node.producer({"bootstrap.servers": bootstrap}, polls=True)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        node.close()

    app = FastAPI(lifespan=lifespan)
    app.add_middleware(BeaconMiddleware, emitter=node.emitter, success="nothing", paths="/orders", missing="draw")

    @app.post("/orders", status_code=202)
    def take_order(order: Order) -> None:
        producer.produce(TOPIC, order.model_dump_json())

    return app


def run_mailer(bootstrap: str, mail: Callable[[str, int], None], stopping: threading.Event) -> None:
    """Mail each order until `stopping` is set; robots get none."""
    with KafkaNode("orders", "mailer") as node:
        consumer = node.consumer(
            {"bootstrap.servers": bootstrap, "group.id": "mailer", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([TOPIC])
        while not stopping.is_set():
            message = consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            order = json.loads(message.value())
            if order["customer"] == "robot":
                node.filtered(message, "robot")
            else:
                mail(order["customer"], order["number"])
                node.sent(message)
