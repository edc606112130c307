"""Measurements against the peers. Only ratios of one run mean anything; see README.md here."""
