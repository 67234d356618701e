"""Ground for all of the server: settings, errors, and small helpers without a subject of their own."""
