"""The commands of `pipeline`, by what they are for; each imports what it alone needs when it is called."""
