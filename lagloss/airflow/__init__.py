"""Airflow 3: report its runs to lagloss, and wait for hours of data that are whole. Installed beside Airflow.

Airflow finds `lagloss.airflow.plugin` by itself; `lagloss.airflow.sensor` is for DAGs. No other part of lagloss imports
this package.
"""
