"""Experiments: one question each, its script and what was found; see README.md here."""
