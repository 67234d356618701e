"""Dash with one chart of six bars and no more, to compare our pages with."""

from __future__ import annotations

import plotly.graph_objects as go
from dash import Dash, dcc
from fastapi import FastAPI

server = FastAPI()
_app = Dash("bare", server=server)  # type: ignore[arg-type]  # declared as for Flask
_app.layout = dcc.Graph(figure=go.Figure([go.Bar(x=[1, 2, 3], y=[2, 1, 3], name=name) for name in ("one", "two")]))
_app._setup_server()  # type: ignore[no-untyped-call]
