"""Breaches become incidents, and incidents become messages to who must know."""
