"""Events of the reference pipeline: events, their schema, and the tables that route them."""
