"""Workers made by a fork: each is an emitter of its own, which begins with its first beacon.

A process of `multiprocessing` closes it at its end by itself; after a bare `os.fork`, call `close`. Fork while no Kafka
client is being made or closed: librdkafka's threads do not survive a fork, and locks that they hold stay locked.
"""

import multiprocessing
import os
import time
import warnings

from common import options

from lagloss import Emitter

chosen = options(__doc__)
emitter = Emitter(chosen.pipeline, "shop", first=True)


def work(worker: str) -> None:
    for number in range(chosen.messages):
        now_ms = time.time_ns() // 1_000_000
        with emitter.processing():
            emitter.received(f"{worker}-{number}", now_ms)
            emitter.sent(f"{worker}-{number}", now_ms)
    print(f"{worker}: emitter {emitter.id.hex()}", flush=True)


def main() -> None:
    work("parent")
    emitter.flush()
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # of Python 3.12

    process = multiprocessing.get_context("fork").Process(target=work, args=("multiprocessing",))
    process.start()
    process.join()

    child = os.fork()
    if child == 0:
        work("fork")
        emitter.close()
        os._exit(0)
    os.waitpid(child, 0)
    emitter.close()


if __name__ == "__main__":
    main()
