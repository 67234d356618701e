"""Taps of tables: a message is at a checkpoint once its row is there."""
