"""Incidents, what happened to them, and what people do about them."""
