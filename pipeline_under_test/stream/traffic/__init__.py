"""Load: made, filled in from the past, replayed and redriven."""
