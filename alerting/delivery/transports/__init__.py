"""Transports to receivers, one module each."""
