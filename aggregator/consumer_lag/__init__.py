"""Watch how far consumer groups are behind."""
