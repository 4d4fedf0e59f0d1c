"""What this process runs on: Paddle, its version, mode and devices."""

from __future__ import annotations

import gc
import platform
import sys
import traceback
from typing import TYPE_CHECKING, Any, Dict, Tuple

from paddle_resume.errors import ConfigError, ResumeError

if TYPE_CHECKING:
    from types import ModuleType

__all__ = [
    "free_memory",
    "free_shared_memory",
    "require_paddle",
    "require_supported_run",
    "versions",
]

_OUT_OF_MEMORY = ("out of memory", "resourceexhausted", "cannot allocate memory")
_SUPPORTED = ((2, 6), (3, 99))


def require_paddle() -> "ModuleType":
    """Imports Paddle.

    Returns:
        The module `paddle`.

    Raises:
        ResumeError: Paddle is not installed; the message names both wheels.
    """
    try:
        import paddle
    except ModuleNotFoundError as error:
        if error.name != "paddle":
            raise
        raise ResumeError(
            "paddle_resume needs PaddlePaddle, which is not installed here. Install one of its "
            "wheels: `pip install paddlepaddle` (CPU) or `pip install paddlepaddle-gpu` (GPU)."
        ) from error
    return paddle


def require_supported_run() -> None:
    """Refuses what paddle_resume cannot protect yet, before the first training step.

    Raises:
        ConfigError: Windows, static graph mode, an unknown Paddle, or more than one process.
    """
    paddle = require_paddle()
    if sys.platform == "win32":
        raise ConfigError(
            "paddle_resume found Windows. Its locks and its atomic commits are built on POSIX "
            "(fcntl, rename, fsync of folders): use Linux, WSL or macOS."
        )
    found = _major_minor(paddle.__version__)
    # A wheel built from source calls itself 0.0.0; the guards on each hook decide about it.
    if found != (0, 0) and not _SUPPORTED[0] <= found <= _SUPPORTED[1]:
        raise ConfigError(
            f"paddle_resume found Paddle {paddle.__version__} and knows 2.6 to 3.x. "
            "Install a known Paddle, or a newer paddle_resume."
        )
    if not paddle.in_dynamic_mode():
        raise ConfigError(
            "paddle_resume found static graph mode (paddle.enable_static()) and protects dynamic "
            "graph training only. Call paddle.disable_static() before building the model."
        )
    world_size = paddle.distributed.ParallelEnv().nranks
    if world_size > 1:
        raise ConfigError(
            f"paddle_resume found {world_size} processes (paddle.distributed.launch or spawn) and "
            "protects one process in this version: nothing would keep the ranks' checkpoints "
            "together. Start the training as one process, or leave the callbacks out."
        )


def free_memory(error: BaseException) -> None:
    """Frees what an error holds on to, where it says that memory has run out.

    Its traceback keeps the activations of the step that failed: room that the save needs.

    Args:
        error: any.
    """
    try:
        text = str(error).lower()
    except Exception:  # the script's own error, with a fault of its own
        text = ""
    if not isinstance(error, MemoryError) and not any(word in text for word in _OUT_OF_MEMORY):
        return
    traceback.clear_frames(error.__traceback__)
    gc.collect()
    paddle = require_paddle()
    if paddle.device.get_device().startswith("gpu"):
        paddle.device.cuda.empty_cache()


def free_shared_memory() -> None:
    """Removes what DataLoader workers have left in /dev/shm; for a process that ends at once."""
    paddle = sys.modules.get("paddle")  # never imported here: there is no time for it
    try:
        paddle.framework.core._cleanup_mmap_fds()  # type: ignore[union-attr]
    except AttributeError:
        pass  # another Paddle, or none: its files go with the machine


def versions() -> Dict[str, str]:
    """Returns the versions that a checkpoint records.

    Example:
        >>> sorted(versions())
        ['numpy', 'paddle', 'paddle_resume', 'python']
    """
    import numpy as np

    from paddle_resume._version import __version__

    paddle: Any = require_paddle()
    return {
        "paddle_resume": __version__,
        "paddle": paddle.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _major_minor(version: str) -> Tuple[int, int]:
    numbers = [part for part in version.split(".")[:2] if part.isdigit()]
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else (0, 0)
