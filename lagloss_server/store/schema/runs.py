"""Tables of DAG runs and the tries of their tasks, as a scheduler reports them. Times are epoch ms."""

from __future__ import annotations

from sqlalchemy import Index, Integer
from sqlalchemy.orm import Mapped, mapped_column

from lagloss_server.store.schema.core import Base


class DagRunRow(Base):
    __tablename__ = "dag_run"
    __table_args__ = (
        Index("dag_run_due", "pipeline", "dag", "due_at"),
        {"comment": "Runs of the DAGs that definitions name, as last reported. Writer: collector."},
    )

    pipeline: Mapped[str] = mapped_column(primary_key=True)
    dag: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(primary_key=True)
    due_at: Mapped[int] = mapped_column(comment="epoch ms: end of its data interval, or planned start")
    interval_start: Mapped[int | None] = mapped_column(comment="epoch ms: data interval; null: it has none")
    interval_end: Mapped[int | None] = mapped_column(comment="epoch ms")
    state: Mapped[str] = mapped_column(comment="queued, running, success or failed")
    started_at: Mapped[int | None] = mapped_column(comment="epoch ms: of its newest attempt")
    ended_at: Mapped[int | None] = mapped_column(comment="epoch ms; null: not yet")
    failed_at: Mapped[int | None] = mapped_column(comment="epoch ms: when it first failed, though it succeeded later")
    reported_at: Mapped[int] = mapped_column(comment="epoch ms on the scheduler's clock; 0: known only from its tasks")


class TaskTryRow(Base):
    __tablename__ = "task_try"
    __table_args__ = (
        Index("task_try_due", "due_at"),
        {"comment": "Attempts of the tasks of these runs, as last reported. Writer: collector."},
    )

    pipeline: Mapped[str] = mapped_column(primary_key=True)
    dag: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(primary_key=True)
    task: Mapped[str] = mapped_column(primary_key=True)
    map_index: Mapped[int] = mapped_column(Integer, primary_key=True, comment="of a mapped task, else -1")
    try_number: Mapped[int] = mapped_column(Integer, primary_key=True, comment="from 1; 0: it never started")
    due_at: Mapped[int] = mapped_column(comment="epoch ms: of its run")
    state: Mapped[str] = mapped_column(comment="running, success, failed, skipped or upstream_failed")
    started_at: Mapped[int | None] = mapped_column(comment="epoch ms")
    ended_at: Mapped[int | None] = mapped_column(comment="epoch ms; null: not yet")
    reported_at: Mapped[int] = mapped_column(comment="epoch ms on the worker's clock")
