"""Discovery: definitions proposed from samples of topics and what consumer groups have committed."""

from taps.discovery.guessing import TopicGuess, find_hops
from taps.discovery.proposal import NodeGuess, Output, Proposal, as_yaml, propose

__all__ = ("NodeGuess", "Output", "Proposal", "TopicGuess", "as_yaml", "find_hops", "propose")
