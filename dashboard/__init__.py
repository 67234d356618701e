"""The page an engineer looks at: lag and loss of a pipeline, minute by minute, read from PostgreSQL."""
