"""From breaches to incidents, and from incidents to planned notifications."""
