"""Whether the cause of faults is named: random worlds with one injected cause, by cause and by what happened to
messages."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Final, get_args

from tests.support.faulty_worlds import Cause, Harm, faulty_world

WORLDS: Final = 20
MESSAGES: Final = 6_000
"""In the window of each world."""


def is_named(cause: Cause, harm: Harm, seed: int) -> bool:
    """Return whether the cause of one world is what is named first; of none, whether nothing is named."""
    return faulty_world(cause, harm, seed, messages=MESSAGES).is_named


def run() -> None:
    """Print, as Markdown, in how many of 20 worlds each cause was named first."""
    harms, causes = get_args(Harm), get_args(Cause)
    cases = [(cause, harm, seed) for cause, harm, seed in product(causes, harms, range(100, 100 + WORLDS))]
    with ProcessPoolExecutor() as workers:
        named = dict(zip(cases, workers.map(is_named, *zip(*cases, strict=True), chunksize=WORLDS), strict=True))
    print(f"| cause | {' | '.join(harms)} |\n|---|{'---|' * len(harms)}")
    for cause in causes:
        named_shares = [sum(named[cause, harm, seed] for seed in range(100, 100 + WORLDS)) for harm in harms]
        print(f"| {cause} | {' | '.join(f'{count} of {WORLDS}' for count in named_shares)} |", flush=True)
