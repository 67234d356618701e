"""The shared parts of lagloss's services: definitions, rules, store, incidents, operation, command line."""
