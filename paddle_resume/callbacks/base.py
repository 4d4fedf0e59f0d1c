"""What paddle_resume's callbacks have in common."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Mapping, Optional, Union

from paddle_resume.callbacks.fit_session import find_callback_list
from paddle_resume.checkpoint import signing
from paddle_resume.errors import ConfigError
from paddle_resume.runtime import require_paddle
from paddle_resume.save_dir import save_dir_from_environment

__all__ = ["ResumeCallback", "SaveDir"]

SaveDir = Union[str, "os.PathLike[str]"]


class ResumeCallback(require_paddle().callbacks.Callback):  # type: ignore[misc]
    """Base of the callbacks: those with one save_dir form one run.

    Args:
        save_dir: where the run's checkpoints are.
        extra: name to an object with `state_dict()` and `set_state_dict(state)`, saved and
            restored with the rest. Values: JSON, numpy arrays and Paddle tensors.
        sign_key: name of the environment variable with the key that signs the checkpoints.
    """

    def __init__(
        self,
        save_dir: SaveDir,
        extra: Optional[Mapping[str, Any]] = None,
        sign_key: Optional[str] = None,
    ) -> None:
        super().__init__()
        signing.sign_key(sign_key)  # a variable that is not set is an error here, not in the fit
        self.save_dir = _checked_save_dir(save_dir)
        self.given_save_dir = os.fspath(save_dir)
        self.extra = _checked_extra(extra)
        self.sign_key = sign_key

    def on_train_begin(self, logs: Optional[Mapping[str, Any]] = None) -> None:
        """Joins the run, or starts it where this is the first of its callbacks."""
        from paddle_resume.callbacks.fit_run import FitRun

        FitRun.join(find_callback_list(self), self.model, self.params)


def _checked_save_dir(save_dir: SaveDir) -> Path:
    is_path = isinstance(save_dir, (str, os.PathLike)) and isinstance(os.fspath(save_dir), str)
    if not is_path or not os.fspath(save_dir) or "\0" in os.fspath(save_dir):
        raise ConfigError(f"save_dir={save_dir!r}: the path of a folder expected")
    # Only here: where the variable is a prefix, applying it twice would nest it.
    return save_dir_from_environment(Path(save_dir)).absolute()


def _checked_extra(extra: Optional[Mapping[str, Any]]) -> Mapping[str, Any]:
    if extra is None:
        return {}
    if not isinstance(extra, Mapping):
        raise ConfigError(f"extra={extra!r}: a dict of name to object expected")
    for name, item in extra.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise ConfigError(f"extra: the name {name!r} is not a plain word")
        for method in ("state_dict", "set_state_dict"):
            if not callable(getattr(item, method, None)):
                raise ConfigError(
                    f"extra[{name!r}] is a {type(item).__name__} without {method}(); objects with "
                    "state_dict() and set_state_dict() are expected"
                )
    return dict(extra)
