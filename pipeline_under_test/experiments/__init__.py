"""Experiments on the reference pipeline: each is one command that measures something and draws a chart of it."""


class NotMeasured(RuntimeError):
    """A run did not finish; the message gives the reason."""
