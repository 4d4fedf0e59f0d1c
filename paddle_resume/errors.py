"""The errors of paddle_resume: each says what was found, what was expected, and what to do."""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "ConfigError",
    "LockedError",
    "MismatchError",
    "ResumeError",
]


class ResumeError(Exception):
    """Base of every error that paddle_resume raises on purpose.

    Example:
        >>> from paddle_resume.errors import ConfigError, ResumeError
        >>> issubclass(ConfigError, ResumeError)
        True
    """


class ConfigError(ResumeError):
    """An argument, a combination of callbacks or the environment cannot work."""


class CheckpointError(ResumeError):
    """A checkpoint is damaged, or there is nothing good to load."""


class MismatchError(ResumeError):
    """A good checkpoint does not fit the model, optimizer or plan of this run."""


class LockedError(ResumeError):
    """Another live run writes to the same save_dir."""
