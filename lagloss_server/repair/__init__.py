"""Repairs: lost messages sent again, each once, with proof of their arrival.

`site` says where a repair sends and which nodes that concerns, `lost` what is lost there, `records` where the records
are; `plan` holds both. `ledger` stores plans and progress, `sender` sends, `arrivals` watches, `runner` carries a
repair out. Why it sends each record once: decisions/0055-a-repair-s-position-is-a-group-s-offset.md.
"""
