"""What rules judge, read from PostgreSQL and kept from look to look."""
