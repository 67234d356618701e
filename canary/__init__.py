"""The canary: sends messages with faults through lagloss, and compares what lagloss reports with what was sent.

Its faults follow from a secret that neither aggregator nor alerter reads. Nothing of `lagloss_server.judging`, of the
aggregator or of the alerter is imported, so that what is wrong there cannot also be wrong here.
"""
