"""Repairs: lost messages sent again, each once, with proof of their arrival.

`site` says where a repair sends and which nodes that concerns, `lost` what is lost there; `plan` holds both. `ledger`
stores plans and progress, a `transport` finds and sends: `topic` records, by `records` and `sender`, `queue` files.
`arrivals` watches, `runner` carries a repair out. Why it sends each record once:
decisions/0055-a-repair-s-position-is-a-group-s-offset.md.
"""
