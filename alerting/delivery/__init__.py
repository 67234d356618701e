"""From planned notifications to receivers."""
