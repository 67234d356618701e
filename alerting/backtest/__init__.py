"""Rules on stored windows."""
