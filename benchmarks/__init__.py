"""Benchmarks: repeatable, of a property of the package or beside another one; see README.md here."""
