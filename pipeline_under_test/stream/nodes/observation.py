"""What observes a node: its own emitter, or nothing where taps do."""

from __future__ import annotations

import os

from lagloss.broker.connection import BOOTSTRAP_VARIABLE
from lagloss.sdk.emitter import Emitter
from lagloss.sdk.outlets.choice import COLLECTOR_VARIABLE
from pipeline_under_test.stream.settings import ReferenceSettings


def emitter_of(settings: ReferenceSettings, node: str, *, first: bool = False, resumes: bool = False) -> Emitter:
    """Return the emitter of this process of a node; with `taps`, one without an address, which does nothing."""
    if not settings.taps:
        return Emitter(settings.pipeline, node, settings.bootstrap, first=first, resumes=resumes)
    for variable in (BOOTSTRAP_VARIABLE, COLLECTOR_VARIABLE):
        os.environ.pop(variable, None)
    return Emitter(settings.pipeline, node)
