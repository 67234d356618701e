"""The nodes of the reference pipeline: what each makes of an event, and how it makes sure that none is lost."""
