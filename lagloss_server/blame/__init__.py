"""Blame: what bad messages have in common. `causes` computes it, `window_blame` reads and `sentences` writes it."""
