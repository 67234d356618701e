"""What the services of lagloss share: definitions, rules, store, incidents, operation, command line."""
