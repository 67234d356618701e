"""`python -m benchmarks.bare_dash PORT`: Dash with one chart of six bars and no more, to compare our pages with."""

from __future__ import annotations

import sys

import plotly.graph_objects as go
import uvicorn
from dash import Dash, dcc
from fastapi import FastAPI

if __name__ == "__main__":
    server = FastAPI()
    app = Dash("bare", server=server)  # type: ignore[arg-type]  # declared as for Flask
    bars = [go.Bar(x=[1, 2, 3], y=[2, 1, 3], name=name) for name in ("one", "two")]
    app.layout = dcc.Graph(figure=go.Figure(bars))
    app._setup_server()  # type: ignore[no-untyped-call]
    uvicorn.run(server, port=int(sys.argv[1]), log_level="warning")
