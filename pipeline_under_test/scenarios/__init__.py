"""Scenarios: loads and faults as files, run on a stack of their own, with what is expected of them."""
