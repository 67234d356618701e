"""A service without any Kafka client: beacons go over HTTP to the collector that LAGLOSS_COLLECTOR_URL names."""

import argparse
import time

from lagloss import Emitter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", default="orders")
    parser.add_argument("--messages", type=int, default=100, help="messages to handle")
    chosen = parser.parse_args()
    with Emitter(chosen.pipeline, "shop", first=True) as emitter:
        for number in range(chosen.messages):
            message_id, event_time = f"order-{number}", time.time_ns() // 1_000_000
            with emitter.processing():
                emitter.received(message_id, event_time)
                emitter.sent(message_id, event_time)
    print(f"shop: {emitter.stats()}")


if __name__ == "__main__":
    main()
