"""The ledger of repairs in PostgreSQL: their plans, what was sent of them, and which process may write that."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, cast

from sqlalchemy import Connection, Engine, Row, func, insert, select, text, true, update

from lagloss.errors import LaglossError, UsageError
from lagloss.wire.format import signed64
from lagloss_server.repair.lost import LostId, LostKind, WindowLoss
from lagloss_server.repair.plan import FilePosition, MessageState, PlannedMessage, Position, set_hash, without_planned
from lagloss_server.repair.records import MessageKey, RecordPosition
from lagloss_server.repair.site import RecordSource
from lagloss_server.store import audit
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.repair import RepairMessageRow, RepairRow

RepairState = Literal["open", "stopped", "finished"]
_CHUNK: Final = 5_000
_repair: Final = table_of(RepairRow)
_message: Final = table_of(RepairMessageRow)


class TakenOver(LaglossError):
    """Another process has taken over repair {id}. It goes on from where this one was; nothing is sent twice."""


class TransactionLost(LaglossError):
    """Kafka ended the transaction of repair {id}, which took too long. Nothing is sent twice; the same command goes
    on."""


class UnknownRepair(UsageError):
    """No repair has the id {id}. `lagloss repair` prints the id of each repair, and incidents show it."""


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """What a repair is for: the same one finds the same repair. `place`: a label; windows with from <= start < to."""

    pipeline: str
    place: str
    from_s: int
    to_s: int
    with_perhaps: bool


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """How a repair is carried out. `ends`: by topic and partition, the end of each topic that is sent into, before
    anything was; `windows`: what was lost before; `sample`: share of the ids that was looked at; `queue`: that is sent
    into, and no topic; `unnamed`: as in `LostSet`; `in_other_repairs`: lost messages that repairs of the place have
    that did not see them arrive."""

    cluster: str
    sources: tuple[RecordSource, ...]
    ends: Mapping[str, Mapping[int, int]]
    windows: tuple[WindowLoss, ...]
    sample: float = 1.0
    queue: str | None = None
    unnamed: int = 0
    in_other_repairs: int = 0

    @classmethod
    def of(cls, cluster: str, document: Mapping[str, Any]) -> RepairPlan:
        """Return the plan in a `document`."""
        return cls(
            cluster,
            tuple(map(RecordSource.of, document["sources"])),
            {topic: {int(number): end for number, end in ends.items()} for topic, ends in document["ends"].items()},
            tuple(WindowLoss(*row) for row in document["windows"]),
            document["sample"],
            document["queue"],
            document["unnamed"],
            document["in_other_repairs"],
        )

    def document(self) -> dict[str, Any]:
        """Return it as JSON, without the cluster."""
        return {
            "sources": [source.document() for source in self.sources],
            "ends": {topic: {str(number): end for number, end in ends.items()} for topic, ends in self.ends.items()},
            "windows": [window.document() for window in self.windows],
            "sample": self.sample,
            "queue": self.queue,
            "unnamed": self.unnamed,
            "in_other_repairs": self.in_other_repairs,
        }

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are sent into, or the queue."""
        return (self.queue,) if self.queue else tuple(dict.fromkeys(source.target for source in self.sources))


@dataclass(frozen=True, slots=True)
class StoredRepair:
    """A repair as it is stored."""

    id: str
    request: RepairRequest
    plan: RepairPlan
    set_hash: str
    created_at: datetime
    created_by: str
    state: RepairState
    stop_reason: str | None
    position: int
    rate: float | None
    started_at: datetime | None
    ended_at: datetime | None
    statement: dict[str, Any] | None

    @property
    def name(self) -> str:
        """The replay's name: the value of the header."""
        return replay_name_of(self.id)

    @classmethod
    def of(cls, row: Row[Any]) -> StoredRepair:
        """Return a row of the table."""
        return cls(
            row.id,
            RepairRequest(row.pipeline, row.place, row.from_window, row.to_window, row.with_perhaps),
            RepairPlan.of(row.cluster, row.plan),
            row.set_hash,
            row.created_at,
            row.created_by,
            row.state,
            row.stop_reason,
            row.position,
            row.rate,
            row.started_at,
            row.ended_at,
            row.statement,
        )


def replay_name_of(repair_id: str) -> str:
    """Return the value of the header `lagloss-replay` of what a repair sends."""
    return f"repair-{repair_id}"


def read_repairs(
    connection: Connection, pipeline: str, from_s: int, to_s: int, limit: int | None = None
) -> list[StoredRepair]:
    """Return the repairs of a pipeline whose windows overlap with from <= start < to, oldest first."""
    overlaps = _repair.c.from_window < to_s, _repair.c.to_window > from_s
    query = select(_repair).where(_repair.c.pipeline == pipeline, *overlaps)
    rows = connection.execute(query.order_by(_repair.c.created_at.desc(), _repair.c.id).limit(limit)).all()
    return [StoredRepair.of(row) for row in reversed(rows)]


class RepairLedger:
    """Reads and writes repairs. What a running repair writes is on condition that its process still is the runner."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def find(self, request: RepairRequest) -> StoredRepair | None:
        """Return the unfinished repair of the place that has some of the windows, else the newest repair of exactly
        this request; None if there is none. (Times that are typed as `-15m` are others a minute later.)"""
        with self._engine.connect() as connection:
            return _newest(connection, request, is_open=True) or _newest(connection, request)

    def get(self, repair_id: str) -> StoredRepair:
        """Return a repair by its id, or its name.

        Raises:
            UnknownRepair
        """
        short = repair_id.removeprefix("repair-")
        with self._engine.connect() as connection:
            row = connection.execute(select(_repair).where(_repair.c.id == short)).one_or_none()
        if row is None:
            raise UnknownRepair(id=repair_id)
        return StoredRepair.of(row)

    def planned_elsewhere(self, request: RepairRequest) -> dict[MessageKey, bool]:
        """Return the messages of these windows that repairs of the same place have sent, or have still to send, and
        whether they arrived. With what is perhaps lost, those of which a finished repair does not know whether it sent
        them are not among them."""
        with self._engine.connect() as connection:
            return _planned_elsewhere(connection, request)

    def create(
        self, request: RepairRequest, plan: RepairPlan, messages: Sequence[PlannedMessage]
    ) -> StoredRepair | None:
        """Store a plan, without the messages that another repair of the place has; return None if that leaves none that
        could be sent and there is a repair of the request already, which another process has just stored."""
        with self._engine.begin() as connection:
            lock = "SELECT pg_advisory_xact_lock(hashtextextended(:work, 0))"
            connection.execute(text(lock), {"work": f"repair {request.pipeline} {request.place}"})
            rest = without_planned(messages, _planned_elsewhere(connection, request))
            if not any(planned.record for planned in rest) and _newest(connection, request) is not None:
                return None
            values = {
                "id": uuid.uuid4().hex[:16],
                "pipeline": request.pipeline,
                "place": request.place,
                "from_window": request.from_s,
                "to_window": request.to_s,
                "with_perhaps": request.with_perhaps,
                "cluster": plan.cluster,
                "plan": plan.document(),
                "set_hash": set_hash(planned.message for planned in rest),
                "created_by": audit.acting().name,
                "state": "open",
                "runner": "",
                "position": 0,
            }
            row = connection.execute(insert(_repair).values(values).returning(*_repair.c)).one()
            rows = [_values(row.id, request.pipeline, planned) for planned in rest]
            for start in range(0, len(rows), _CHUNK):
                connection.execute(insert(_message), rows[start : start + _CHUNK])
        return StoredRepair.of(row)

    def messages(self, repair_id: str) -> list[PlannedMessage]:
        """Return the messages of a repair in the order of its plan."""
        with self._engine.connect() as connection:
            rows = connection.execute(
                select(_message).where(_message.c.repair == repair_id).order_by(_message.c.position)
            )
            return [_planned(row) for row in rows]

    def take_over(self, repair: StoredRepair, rate: float) -> str:
        """Become the runner of a repair, whoever was it; return a name that no other runner has. The audit trail says
        so, with the hash of the set."""
        runner = uuid.uuid4().hex
        with self._engine.begin() as connection:
            values = {"runner": runner, "rate": rate, "state": "open", "stop_reason": None}
            connection.execute(update(_repair).where(_repair.c.id == repair.id).values(values))
            request = repair.request
            audit.note(
                connection,
                "repair.start",
                f"{request.pipeline} {repair.name}",
                [request.pipeline],
                place=request.place,
                messages=connection.execute(
                    select(func.count()).select_from(_message).where(_message.c.repair == repair.id)
                ).scalar_one(),
                set_sha256=repair.set_hash,
            )
        return runner

    def is_runner(self, repair_id: str, runner: str) -> bool:
        """Return whether no other process has taken the repair over."""
        with self._engine.connect() as connection:
            return connection.execute(select(_repair.c.runner).where(_repair.c.id == repair_id)).scalar() == runner

    def write(
        self, repair_id: str, runner: str, states: Mapping[MessageState, Collection[int]] | None = None, **values: Any
    ) -> str | None:
        """Write columns of a repair, and the states of messages by position, if this is still the runner; return why it
        is to stop, None if it is not.

        Raises:
            TakenOver: another process is.
        """
        with self._engine.begin() as connection:
            is_mine = _repair.c.id == repair_id, _repair.c.runner == runner
            row = connection.execute(select(_repair.c.stop_reason).where(*is_mine).with_for_update()).one_or_none()
            if row is None:
                raise TakenOver(id=repair_id)
            for state, positions in (states or {}).items():
                for chunk in _chunks(positions):
                    of_them = _message.c.repair == repair_id, _message.c.position.in_(chunk)
                    connection.execute(update(_message).where(*of_them).values(state=state))
            if values:
                connection.execute(update(_repair).where(*is_mine).values(values))
        reason: str | None = row.stop_reason
        return reason

    def mark_seen(self, repair_id: str, positions: Collection[int], state: MessageState, *, is_delivered: bool) -> None:
        """Note what became of messages, as far as they were seen: at their destinations, or before."""
        with self._engine.begin() as connection:
            for chunk in _chunks(positions):
                of_them = _message.c.repair == repair_id, _message.c.position.in_(chunk)
                connection.execute(update(_message).where(*of_them).values(state=state, is_delivered=is_delivered))

    def end(
        self, repair_id: str, runner: str | None, state: RepairState, reason: str | None, statement: dict[str, Any]
    ) -> None:
        """Store how a run ended, unless another process is the runner by now. `runner`: None if it only looked at a
        repair that is finished."""
        same = _repair.c.state == "finished" if runner is None else _repair.c.runner == runner
        values = {"state": state, "stop_reason": reason, "statement": statement}
        ended = {} if runner is None else {"ended_at": func.clock_timestamp(), "runner": ""}
        with self._engine.begin() as connection:
            connection.execute(update(_repair).where(_repair.c.id == repair_id, same).values(**values, **ended))

    def ask_to_stop(self, repair_id: str) -> StoredRepair:
        """Let the running process stop after its current transaction; the repair can be gone on with.

        Raises:
            UnknownRepair
            UsageError: it is finished.
        """
        repair = self.get(repair_id)
        if repair.state == "finished":
            raise UsageError(detail=f"repair {repair.id} is finished")
        with self._engine.begin() as connection:
            reason = f"stopped by {audit.acting().name}"
            is_open = _repair.c.id == repair.id, _repair.c.state != "finished"
            connection.execute(update(_repair).where(*is_open).values(stop_reason=reason))
            audit.note(connection, "repair.stop", f"{repair.request.pipeline} {repair.name}", [repair.request.pipeline])
        return self.get(repair.id)


def _newest(connection: Connection, request: RepairRequest, *, is_open: bool = False) -> StoredRepair | None:
    """Return the newest repair of a request, or one that is not finished and has some of its windows."""
    same = [_repair.c.pipeline == request.pipeline, _repair.c.place == request.place]
    if is_open:
        same += [_repair.c.from_window < request.to_s, _repair.c.to_window > request.from_s]
        same.append(_repair.c.state != "finished")
    else:
        same += [_repair.c.from_window == request.from_s, _repair.c.to_window == request.to_s]
        same.append(_repair.c.with_perhaps == request.with_perhaps)
    row = connection.execute(select(_repair).where(*same).order_by(_repair.c.created_at.desc()).limit(1)).one_or_none()
    return None if row is None else StoredRepair.of(row)


def _planned_elsewhere(connection: Connection, request: RepairRequest) -> dict[MessageKey, bool]:
    is_unknown = (_message.c.state == "sending") & (_repair.c.state == "finished")
    rows = connection.execute(
        select(_message.c.window_start, _message.c.id_hash, func.bool_or(_message.c.is_delivered).label("arrived"))
        .join(_repair, _repair.c.id == _message.c.repair)
        .where(
            _repair.c.pipeline == request.pipeline,
            _repair.c.place == request.place,
            _repair.c.from_window < request.to_s,
            _repair.c.to_window > request.from_s,
            _message.c.state.in_(("planned", "sending", "sent")),
            ~is_unknown if request.with_perhaps else true(),
        )
        .group_by(_message.c.window_start, _message.c.id_hash)
    )
    return {(row.window_start, row.id_hash % (1 << 64)): row.arrived for row in rows}


def _values(repair_id: str, pipeline: str, planned: PlannedMessage) -> dict[str, Any]:
    record = planned.record if isinstance(planned.record, RecordPosition) else None
    return {
        "repair": repair_id,
        "position": planned.position,
        "pipeline": pipeline,
        "window_start": planned.message.window_start_s,
        "id_hash": signed64(planned.message.id_hash),
        "message_id": planned.message.message_id,
        "kind": planned.message.kind,
        "target": None if planned.record is None else planned.record.target,
        "topic": None if record is None else record.topic,
        "topic_partition": None if record is None else record.partition,
        "topic_offset": None if record is None else record.offset,
        "state": planned.state,
        "is_delivered": planned.is_delivered,
    }


def _planned(row: Row[Any]) -> PlannedMessage:
    kind, state = cast("LostKind", row.kind), cast("MessageState", row.state)
    message = LostId(row.window_start, row.id_hash % (1 << 64), row.message_id, kind, 0.0)
    record: Position | None = None if row.target is None else FilePosition(row.target)
    if row.topic is not None:
        record = RecordPosition(row.topic, row.topic_partition, row.topic_offset, row.target)
    return PlannedMessage(row.position, message, record, state, row.is_delivered)


def _chunks(positions: Collection[int]) -> Iterable[list[int]]:
    ordered = sorted(positions)
    return (ordered[start : start + _CHUNK] for start in range(0, len(ordered), _CHUNK))
