"""PostgreSQL: tables, and statements that several services share."""
