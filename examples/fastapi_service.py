"""The first node as a web service: POST /orders is a message, and is out once the producer has it acknowledged."""

import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import httpx2
import uvicorn
from common import BOOTSTRAP, STOPPING, make_topics, options
from fastapi import Depends, FastAPI
from pydantic import BaseModel

from lagloss.asgi import BeaconMiddleware, current_identity
from lagloss.identity import Identity
from lagloss.kafka import KafkaNode

chosen = options(__doc__)
make_topics(chosen)
node = KafkaNode(chosen.pipeline, "shop", first=True)
producer = node.producer({"bootstrap.servers": BOOTSTRAP}, polls=True)


class Order(BaseModel):
    """Body of POST /orders."""

    number: int


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    yield
    node.close()


app = FastAPI(lifespan=lifespan)
app.add_middleware(BeaconMiddleware, emitter=node.emitter, success="nothing", paths="/orders", missing="draw")


@app.post("/orders", status_code=202)
def take_order(order: Order, identity: Annotated[Identity, Depends(current_identity)]) -> dict[str, str]:
    producer.produce(chosen.orders, order.model_dump_json())
    return {"id": identity.message_id}


def main() -> None:
    """Serve, and post orders from a thread."""
    listening = socket.create_server(("127.0.0.1", 0))  # on any free port
    port = listening.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))

    def post_orders() -> None:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
            for number in range(chosen.messages):
                client.post("/orders", json={"number": number} if number % 10 else {"number": "none"})
        if not chosen.messages:
            STOPPING.wait()
        server.should_exit = True

    threading.Thread(target=post_orders).start()
    server.run(sockets=[listening])
    print(f"shop: {node.emitter.stats()}")


if __name__ == "__main__":
    main()
