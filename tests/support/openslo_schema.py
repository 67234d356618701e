"""OpenSLO v1 as a JSON schema, as far as lagloss writes it; nothing that is not listed is allowed.

Written by hand from the specification's README (github.com/OpenSLO/OpenSLO, "Specification") and from what its Go SDK
validates (github.com/OpenSLO/go-sdk, pkg/openslo/v1), since the schemas beside the specification leave objectives, time
windows and indicators open: required fields, DNS labels as names, bounds of targets, one condition for each policy, one
of `good` and `bad`, durations in shorthand.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]


def _record(required: list[str], optional: Schema | None = None, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "required": required,
        "properties": {**properties, **(optional or {})},
        "additionalProperties": False,
    }


_TEXT: Final[Schema] = {"type": "string", "minLength": 1}
_DESCRIPTION: Final[Schema] = {"type": "string", "maxLength": 1_050}
_NAME: Final[Schema] = {"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
_DURATION: Final[Schema] = {"type": "string", "pattern": "^[1-9][0-9]*[mhdwMQY]$"}
_KEY = "[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABELS: Final[Schema] = {
    "type": "object",
    "patternProperties": {f"^{_KEY}$": {"type": ["string", "array"], "items": {"type": "string"}}},
    "additionalProperties": False,
}
_ANNOTATIONS: Final[Schema] = {
    "type": "object",
    "patternProperties": {f"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_KEY}$": {"type": "string"}},
    "additionalProperties": False,
}
_METADATA: Final = _record(["name"], name=_NAME, displayName=_TEXT, labels=_LABELS, annotations=_ANNOTATIONS)
_METRIC: Final = _record(
    ["metricSource"],
    metricSource=_record(["type", "spec"], type=_TEXT, spec=_record(["query"], query=_TEXT)),
)
_RATIO: Final[Schema] = {
    **_record(["counter", "total"], counter={"type": "boolean"}, good=_METRIC, bad=_METRIC, total=_METRIC),
    "oneOf": [{"required": ["good"]}, {"required": ["bad"]}],
}
_CONDITION: Final = _record(
    ["kind", "metadata", "spec"],
    kind={"const": "AlertCondition"},
    metadata=_METADATA,
    spec=_record(
        ["severity", "condition"],
        description=_DESCRIPTION,
        severity=_TEXT,
        condition=_record(
            ["kind", "op", "threshold", "lookbackWindow"],
            kind={"const": "burnrate"},
            op={"enum": ["lte", "gte", "lt", "gt"]},
            threshold={"type": "number"},
            lookbackWindow=_DURATION,
            alertAfter=_DURATION,
        ),
    ),
)
_SPECS: Final[dict[str, Schema]] = {
    "Service": _record([], description=_DESCRIPTION),
    "SLI": _record(["ratioMetric"], description=_DESCRIPTION, ratioMetric=_RATIO),
    "SLO": _record(
        ["service", "indicatorRef", "budgetingMethod", "objectives"],
        description=_DESCRIPTION,
        service=_NAME,
        indicatorRef=_NAME,
        timeWindow={
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": _record(["duration", "isRolling"], duration=_DURATION, isRolling={"const": True}),
        },
        budgetingMethod={"enum": ["Occurrences"]},
        objectives={
            "type": "array",
            "minItems": 1,
            "items": _record(
                ["target"], displayName=_TEXT, target={"type": "number", "minimum": 0, "exclusiveMaximum": 1}
            ),
        },
        alertPolicies={"type": "array", "items": _record(["alertPolicyRef"], alertPolicyRef=_NAME)},
    ),
    "AlertPolicy": _record(
        ["conditions", "notificationTargets"],
        description=_DESCRIPTION,
        alertWhenNoData={"type": "boolean"},
        alertWhenResolved={"type": "boolean"},
        alertWhenBreaching={"type": "boolean"},
        conditions={"type": "array", "minItems": 1, "maxItems": 1, "items": _CONDITION},
        notificationTargets={"type": "array", "minItems": 1, "items": _record(["targetRef"], targetRef=_NAME)},
    ),
    "AlertNotificationTarget": _record(["target"], description=_DESCRIPTION, target=_TEXT),
}
SCHEMA: Final[Schema] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "oneOf": [
        _record(
            ["apiVersion", "kind", "metadata", "spec"],
            apiVersion={"const": "openslo/v1"},
            kind={"const": kind},
            metadata=_METADATA,
            spec=spec,
        )
        for kind, spec in _SPECS.items()
    ],
}
