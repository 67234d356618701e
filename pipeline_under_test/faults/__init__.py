"""Faults on purpose: what they are called, when they hold, and what they do to an event."""

from pipeline_under_test.faults.grammar import BadFault, Fault, parse
from pipeline_under_test.faults.injections import Injection, Injections
from pipeline_under_test.faults.plan import INJECTED, NO_FAULT, Faults, Plan

__all__ = ["INJECTED", "NO_FAULT", "BadFault", "Fault", "Faults", "Injection", "Injections", "Plan", "parse"]
