"""Experiments on the reference pipeline: each is one command that measures something and draws a chart of it."""
