"""What flows through the reference pipeline: events, their schema, and the tables that route them."""
