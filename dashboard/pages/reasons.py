"""Why messages were filtered or dead, as a table that pages share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import dash_mantine_components as dmc

from dashboard.pages.base import Part, sideways
from lagloss_server.base import format as fmt
from lagloss_server.model.window import ReasonRow

TITLE: Final = "Why messages were filtered or dead"
_HEADS: Final = ("Node", "Exit", "Reason", "Beacons")


def reasons_table(rows: Sequence[ReasonRow]) -> Part:
    """Draw the reasons, in the order given."""
    body = []
    for row in rows:
        reason = dmc.TableTd(fmt.reason(row.reason), className="breaks")
        number = dmc.TableTd(fmt.count(row.count), className="number")
        body.append(dmc.TableTr([dmc.TableTd(row.node), dmc.TableTd(row.exit), reason, number]))
    return sideways(
        TITLE,
        dmc.Table(
            [dmc.TableThead(dmc.TableTr([dmc.TableTh(head) for head in _HEADS])), dmc.TableTbody(body)],
            striped=True,
            withTableBorder=True,
            tabularNums=True,
            verticalSpacing=4,
        ),
    )
