"""Breaks one part of the product, in a training's process: the tests must find each of them."""

from __future__ import annotations

from typing import Any, Callable, Dict

__all__ = ["PARTS", "apply"]


def _watching_thread() -> None:
    """Signals are answered between two batches only, as by a flag."""
    from paddle_resume.emergency import Emergency

    Emergency._tick = lambda self: None  # type: ignore[method-assign]


def _statistics() -> None:
    """What the forward moves is copied when it is saved, not at the boundary."""
    from paddle_resume.points import Points

    complete = Points.complete

    def late(self: Any, point: Any, at_once: bool) -> Any:
        if not at_once:
            point = self.reach_anew(point)
        return complete(self, point, at_once)

    def reach_anew(self: Any, point: Any) -> Any:
        import dataclasses

        from paddle_resume.types import ANYTIME, UPDATE

        parts = {
            part.name: part.capture() if part.moves == ANYTIME else part.mark()
            for part in self._parts()
            if part.moves != UPDATE
        }
        kept = {name: parts[name] for name in ("model", "rng") if name in parts}
        return dataclasses.replace(point, parts={**point.parts, **kept})

    Points.reach_anew = reach_anew  # type: ignore[attr-defined]
    Points.complete = late  # type: ignore[method-assign,assignment]


def _gate() -> None:
    """The last boundary stays the one to save when the update has begun."""
    from paddle_resume.points import Points

    Points.begin_update = lambda self: None  # type: ignore[method-assign]


def _swapped() -> None:
    """Nobody looks whether the weights are those of the training."""
    from paddle_resume.points import Points

    Points.is_whole = lambda self, point: True  # type: ignore[method-assign]


def _grace() -> None:
    """The grace period is taken for a longer one."""
    from paddle_resume import emergency
    from paddle_resume.stops import Stop

    class Longer:
        @staticmethod
        def at(now: float, reason: str, code: int, grace_s: float, interrupts: bool) -> Stop:
            return Stop.at(now, reason, code, 3 * grace_s, interrupts)

    emergency.Stop = Longer  # type: ignore[misc,assignment]


def _exceptions() -> None:
    """An exception ends the training without a save."""
    from paddle_resume.emergency import Emergency

    Emergency.rescue = lambda self, error: None  # type: ignore[method-assign]


def _deaf_workers() -> None:
    """Workers end with a signal to the group."""
    import signal

    from paddle_resume.data import worker_signals, workers

    workers.deafen = lambda: signal.pthread_sigmask(  # type: ignore[assignment]
        signal.SIG_UNBLOCK, worker_signals._STOPPING
    )


def _exit_code() -> None:
    """The process ends as if all were well."""
    from paddle_resume.stops import Stop

    Stop.exit_code = lambda self, is_safe: 0  # type: ignore[method-assign]


PARTS: Dict[str, Callable[[], None]] = {
    "watching thread": _watching_thread,
    "statistics": _statistics,
    "gate": _gate,
    "swapped": _swapped,
    "grace": _grace,
    "exceptions": _exceptions,
    "deaf workers": _deaf_workers,
    "exit code": _exit_code,
}


def apply(part: str) -> None:
    """Breaks a part."""
    PARTS[part]()
