"""Checkpoints on disk: layout, verification, commit, lineage. Knows files, nothing of training."""
