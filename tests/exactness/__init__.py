"""Kills a training, starts it again, and compares all it did with a run that was never killed."""
