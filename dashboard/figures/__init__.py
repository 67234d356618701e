"""Charts, as pure functions of what was read."""
