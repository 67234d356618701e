"""Airflow's plugin, which it finds by the entry point `airflow.plugins` of the installed package."""

from __future__ import annotations

from typing import ClassVar

from airflow.plugins_manager import AirflowPlugin

from lagloss.airflow.listener import RunListener


class LaglossPlugin(AirflowPlugin):  # type: ignore[misc]
    name = "lagloss"
    listeners: ClassVar[list[object]] = [RunListener()]
