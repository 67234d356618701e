"""Alerter: turns breaches into incidents, and incidents into notifications."""
