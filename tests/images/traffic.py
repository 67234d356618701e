"""A pipeline of two nodes, as a program in a container of the composed network.

Prints each finished minute as a line of JSON: its start in epoch seconds, its messages, and the id of the one that the
node `mail` loses. It loses one, in its first complete minute.
"""

from __future__ import annotations

import json
import sys
import time

from lagloss import Emitter

RATE_PER_S = 10


def run() -> None:
    """Send until the process is ended."""
    shop, mail = Emitter("composed", "shop", first=True), Emitter("composed", "mail")
    first = (int(time.time()) // 60 + 1) * 60
    sent, minute, lost = 0, 0, None
    while True:
        now_ms = time.time_ns() // 1_000_000
        start = now_ms // 60_000 * 60
        if start != minute:
            if minute:
                sys.stdout.write(json.dumps({"start": minute, "messages": sent, "lost": lost}) + "\n")
                sys.stdout.flush()
            sent, minute, lost = 0, start, None
        name = f"order-{start}-{sent}"
        with shop.processing():
            shop.received(name, now_ms)
            shop.sent(name, now_ms)
        with mail.processing():
            mail.received(name, now_ms)
            if start == first and sent == 7:
                lost = name
            else:
                mail.sent(name, now_ms)
        sent += 1
        time.sleep(1 / RATE_PER_S)


if __name__ == "__main__":
    run()
