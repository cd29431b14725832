"""Whole jobs: adapt, transcribe, tune, evaluate, the demonstration. Commands and Python call the same."""
