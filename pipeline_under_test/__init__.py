"""The reference pipeline: how to pass events on without losing any, and how to lose some on purpose, id by id."""
