"""Signals and exceptions at any moment: what is saved, how the process ends, how it goes on."""
