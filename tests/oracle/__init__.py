"""The slow, obvious oracle of the rules of arithmetic, and the random worlds it is asked about."""
