"""Embedded servers, for a machine that has none."""
