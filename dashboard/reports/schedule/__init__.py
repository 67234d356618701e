"""Scheduled reports: the file that names them, their runs, their mails."""
