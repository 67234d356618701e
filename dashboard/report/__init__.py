"""SLA reports: what is promised, what was kept, and what that rests on."""
