"""What teams may see: their file, and the store through which everything that people ask for is read."""
