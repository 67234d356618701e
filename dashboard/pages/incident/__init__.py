"""The page of an incident, and what can be done about one."""
