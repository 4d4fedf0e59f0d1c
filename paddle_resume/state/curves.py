"""The curves of Paddle's VisualDL and WandbCallback: they go on, and their writers are emptied.

hapi's VisualDL makes a `visualdl.LogWriter`, and with it a new file, at the first point of each
process, and VisualDL shows the newest file of a folder alone. Here the callback is given a writer
on the file that the checkpoint names, without the points that are about to be made again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from typing import Any, Callable, List, Optional, Sequence, Tuple

from paddle_resume.observe.log import log
from paddle_resume.state.vdl_file import MARK, take_out

__all__ = ["close_writers", "flush_writers", "go_on", "paddle_kinds", "remember"]

_Action = Tuple[str, Callable[[], Any]]


def paddle_kinds(callback: Any) -> List[str]:
    """Returns the names of Paddle's own classes that a callback is of.

    Example:
        >>> paddle_kinds(object())
        []
    """
    return [
        kind.__name__ for kind in type(callback).__mro__ if kind.__module__.startswith("paddle.")
    ]


def remember(callback: Any) -> Optional[str]:
    """Returns what a checkpoint must hold of a callback's curve; reads attributes only.

    Args:
        callback: any.

    Returns:
        The name of its log file in its log_dir, which may be moved; None where it has none, or
        one that is not simply in there.
    """
    writer = _writer(callback)
    if writer is None:
        return None
    path = getattr(writer, "file_name", None)
    folder = callback.log_dir
    if not isinstance(folder, str) or not isinstance(path, str) or "://" in folder:
        return None
    name = os.path.basename(path)
    return name if os.path.join(folder, name) == path else None


def go_on(callback: Any, name: str, is_over: bool = False) -> None:
    """Lets a callback, its own state already restored, go on in the file of before.

    Nothing on disk is touched until it writes.

    Args:
        callback: one that `remember` returned a name of.
        name: the name.
        is_over: whether the run is finished, so that none of its points will be made again.
    """
    if "VisualDL" not in paddle_kinds(callback) or not callback._is_write():
        return
    if not isinstance(_writer(callback), (type(None), _LaterWriter)):
        return  # the user's own code has put it there
    if name == os.path.basename(name) and MARK in name:
        callback.writer = _LaterWriter(callback, name, is_over)


def flush_writers(callbacks: Sequence[Any], seconds: float = 5.0) -> None:
    """Puts all points made so far on the disk; the writers stay open.

    For any thread. A run that goes on from a checkpoint does not make the points before it again,
    so they must be on the disk before it is: VisualDL's writer may have 120 of them in its queue.

    Args:
        callbacks: any.
        seconds: the longest that it takes.
    """
    actions: List[_Action] = []
    for callback in callbacks:
        writer = _writer(callback)
        if writer is not None:
            what = f"flushing {type(callback).__name__}"
            actions.append((what, functools.partial(_flush, writer)))
    _at_most(seconds, actions)


def close_writers(
    callbacks: Sequence[Any],
    exit_code: Optional[int] = None,
    seconds: float = 5.0,
    in_use: bool = False,
) -> None:
    """Ends the writers of Paddle's VisualDL and WandbCallback, with all of their points.

    Args:
        callbacks: any; only Paddle's own and subclasses of them are touched.
        exit_code: of this process, for Weights and Biases.
        seconds: the longest that it takes: one that needs longer is left behind.
        in_use: whether another thread may still be training. At its next point a callback without
            a writer would begin a new file or run: so each keeps its own, and VisualDL's are
            flushed only.
    """
    actions: List[_Action] = []
    for callback in callbacks:
        what = f"closing {type(callback).__name__}"
        writer = _writer(callback)
        if writer is not None:
            actions.append((what, functools.partial(_flush, writer) if in_use else writer.close))
            if not in_use:
                del callback.writer
            continue
        run = getattr(callback, "_run", None)
        if run is not None and "WandbCallback" in paddle_kinds(callback):
            actions.append((what, functools.partial(run.finish, exit_code=exit_code)))
            if not in_use:
                callback._run = None
    _at_most(seconds, actions)


class _LaterWriter:
    """Stands for a callback's LogWriter from a resume to the first point after it.

    Only then it is clear what comes again: a finished run that is started again writes nothing,
    and the evaluation of a resumed epoch is replayed or not.

    Args:
        callback: whose writer it is.
        name: of the log file.
        is_over: see `go_on`.
    """

    def __init__(self, callback: Any, name: str, is_over: bool) -> None:
        self._callback = callback
        self._is_over = is_over
        self._step = callback.train_step
        self._opened: Any = None
        self.file_name = os.path.join(callback.log_dir, name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._opened is None:
            self._opened = self._callback.writer = self._open()
        return getattr(self._opened, name)

    def flush(self) -> None:
        """Does not open the file for that."""
        if self._opened is not None:
            self._opened.flush()

    def close(self) -> None:
        """Does not open the file for that."""
        if self._opened is not None:
            self._opened.close()

    def _open(self) -> Any:
        import visualdl

        path, folder = self.file_name, self._callback.log_dir
        if not os.path.isfile(path):
            log.info("%s is gone: VisualDL's curve begins anew", path)
        else:
            try:
                if not self._is_over:
                    self._take_out_what_comes_again()
                return _append_to(folder, path)
            except (OSError, ValueError) as error:
                log.warning(
                    "VisualDL's curve goes on in a new file, as %s cannot be used: %s", path, error
                )
        return visualdl.LogWriter(folder)

    def _take_out_what_comes_again(self) -> None:
        callback, trained = self._callback, self._step
        training = {f"train/{metric}" for metric in callback.train_metrics}
        evaluation = {f"eval/{metric}" for metric in callback.train_metrics}

        def comes_again(tag: str, step: int) -> bool:
            if tag in training:
                return step > trained
            # The callback has heard which epoch runs; its evaluation is still to come.
            return tag in evaluation and step >= callback.epoch

        name = os.path.basename(self.file_name).replace(MARK, "replaced")
        aside = f"{name}.after-{trained}"  # a name that VisualDL does not read
        taken = take_out(self.file_name, comes_again, aside)
        if taken:
            log.info(
                "VisualDL's curve goes on after step %d in %s; the points that lay beyond are "
                "kept in %s beside it",
                trained,
                self.file_name,
                aside,
            )


def _append_to(folder: str, path: str) -> Any:
    """Opens a log file that exists, without a change to it."""
    import visualdl

    size = os.path.getsize(path)
    writer = visualdl.LogWriter(folder, file_name=os.path.basename(path))
    # It has begun with a head, as in a new file. A board that is open would lose its place: it
    # reads on from the byte where it stood, and the points made again are as long as the old ones.
    writer.flush()
    if 0 < size < os.path.getsize(path):
        os.truncate(path, size)
    return writer


def _writer(callback: Any) -> Any:
    """Returns what a VisualDL callback writes with; None where it has no writer."""
    return vars(callback).get("writer") if "VisualDL" in paddle_kinds(callback) else None


def _flush(writer: Any) -> None:
    # Where fit's end closes it meanwhile, all of it is in the file anyway.
    with contextlib.suppress(OSError, AttributeError):
        path = writer.file_name
        writer.flush()
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def _at_most(seconds: float, actions: Sequence[_Action]) -> None:
    """Does things side by side; one that fails or takes too long is a warning."""

    def guarded(what: str, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:
            log.warning("%s failed: %s: %s", what, type(error).__name__, error)

    deadline = time.monotonic() + seconds
    threads = []
    for what, action in actions:
        # A daemon: one that hangs (no network) must not hold up the exit of the process.
        thread = threading.Thread(target=guarded, args=(what, action), name=what, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit of the machine
            log.warning("%s failed: %s", what, error)
            continue
        threads.append(thread)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            log.warning("%s takes over %g s and is left behind", thread.name, seconds)
