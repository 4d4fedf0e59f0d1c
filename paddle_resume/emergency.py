"""What a run does when it is told to stop, or fails.

A signal is noticed by a thread of its own (signals.py). The training's thread answers it at its
next boundary or event; where it would not come there in time, the watching thread saves the last
point instead. Whoever claims the stop first is the only one to save.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from typing import List, NoReturn, Optional, Protocol

from paddle_resume.boundaries import Outcome
from paddle_resume.checkpoint.lock import Holder
from paddle_resume.deaths import Deaths
from paddle_resume.exits import Stopped, exit_now, in_notebook
from paddle_resume.observe.log import human_duration, log
from paddle_resume.runtime import free_memory
from paddle_resume.session import Session
from paddle_resume.signals import Deaf, SignalWatch
from paddle_resume.stops import EmergencyPolicy, Stop, reserve

__all__ = ["Emergency", "Writers"]

_SECOND_INTERRUPT_S = 1.0
_LOOK_AGAIN_S = 0.05
_UNWIND_S = 1.0
_WRITERS_S = 5.0


class Writers(Protocol):
    """What other callbacks have written and not yet put on the disk."""

    def close(self, exit_code: int, in_use: bool, seconds: float) -> None:
        """Puts it there and ends it.

        Args:
            exit_code: what the process ends with.
            in_use: whether the training's thread may still write.
            seconds: the longest that it may take.
        """
        ...


class Emergency:
    """Saves and stops one run when it is told to, or fails.

    Args:
        policy: when.
        session: whose last point is saved.
        run: what is closed.
        writers: what would lose its content when the process ends at once.
    """

    def __init__(
        self,
        policy: EmergencyPolicy,
        session: Session,
        run: Holder,
        writers: Writers,
    ) -> None:
        self._policy = policy
        self._session = session
        self._run = run
        self._writers = writers
        self._watch: Optional[SignalWatch] = None
        self._deaf: Optional[Deaf] = None
        self._deaths = Deaths()
        self._is_handed_over = False
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._stop: Optional[Stop] = None
        self._claimed_by: Optional[int] = None
        self._watcher_saves = False
        self._answered = threading.Event()
        self._is_safe = False
        self._is_leaving = False
        self._is_to_leave = False
        self._outcome: Optional[Outcome] = None
        self._saving: Optional[threading.Thread] = None
        self._interrupted_at: Optional[float] = None
        self._save_asked = False
        self._complained = ""

    @property
    def is_leaving(self) -> bool:
        """Whether the training's thread is on its way out of the process."""
        return self._is_leaving

    def start(self) -> None:
        """Starts to watch; off the main thread signals are off, with a warning."""
        numbers = self._policy.numbers
        if threading.current_thread() is threading.main_thread():
            self._watch = SignalWatch(numbers, self._notice, self._tick, self._handle)
            self._watch.start()
        elif numbers:
            log.warning(
                "the training runs off the main thread, where Python can catch no signal: "
                "EmergencySaver answers none%s. Call fit in the main thread to have a SIGTERM "
                "saved.",
                ", only exceptions" if self._policy.on_exception else "",
            )

    def retire(self) -> None:
        """Saves nothing any more, once a last save that is under way in the watching thread is
        over; after a second Ctrl-C it is given a moment only."""
        at_once = self._is_to_leave and not self._answered.is_set()
        end = time.monotonic() + (_UNWIND_S if at_once else math.inf)
        while not self._take() and self._watcher_saves and time.monotonic() < end:
            if self._answered.wait(_LOOK_AGAIN_S):
                return

    def close(self) -> None:
        """Stops watching; a signal that nobody has answered goes to who had it before."""
        watch, self._watch = self._watch, None
        try:
            self._deaths.release()
        except Exception as error:  # the run is over: it has nothing to tell it any more
            log.debug("at the end of the run: %s: %s", type(error).__name__, error)
        if watch is None:
            return
        # Launchers send their signal again and again: it changes nothing while this is on its way.
        leaves = self._is_leaving and not in_notebook()
        self._deaf = watch.close(deaf_while=self._is_on_its_way if leaves else None)
        stop = self._stop
        if stop is None or self._is_leaving or self._answered.is_set():
            return
        if stop.reason in signal.Signals.__members__:
            signal.raise_signal(signal.Signals[stop.reason])

    # ------------------------------------------------------------------ the training's thread

    def save_asked(self) -> bool:
        """Whether save_signal has come since the last call."""
        if not self._save_asked:
            return False
        self._save_asked = False
        number = self._policy.save_signal
        if number is not None:
            self._session.events.append("signal", reason=signal.Signals(number).name)
        return True

    def leave_if_asked(self) -> None:
        """Saves and stops where that was asked for, and a point is there to be saved.

        Raises:
            SystemExit: with 128 + the signal's number, or 1 where the save was not made.
            KeyboardInterrupt: in a notebook, after SIGINT.
        """
        if self._watch is not None:
            self._watch.rearm()
            self._watch.settle()
        elif self._stop is None:
            self._stop_in_time()
        stop = self._stop
        if stop is not None:
            self._deaths.hush()  # what ends the run may end its workers one after the other
            self._save_and_leave(stop)
            self._give_back()
        self._deaths.arm()  # not before the training: Paddle's handler comes with its first workers
        self._deaths.listen()

    def rescue(self, error: BaseException) -> None:
        """Saves the last point before an error goes on its way, which nothing here replaces.

        Args:
            error: what ended the training.

        Raises:
            SystemExit: the run was to stop anyway.
        """
        self._deaths.hush()
        try:
            self._rescue(error)
        except Exception as other:
            log.error("the last save failed: %s: %s", type(other).__name__, other)

    def _rescue(self, error: BaseException) -> None:
        is_interrupt = isinstance(error, KeyboardInterrupt)
        is_interrupt = is_interrupt and signal.SIGINT in self._policy.signals
        has_begun = self._session.boundaries is not None
        if self._is_leaving or not has_begun:
            return
        if self._stop is not None and not self._stop.interrupts:
            self._leave_with(error, self._stop)
        if not (self._policy.on_exception or is_interrupt):
            return
        self._take_over()
        free_memory(error)
        name = "SIGINT" if is_interrupt else type(error).__name__
        outcome = self._save_aside("SIGINT" if is_interrupt else "exception", None)
        if outcome is None:
            self._session.wait_for_saved_step()
            log.warning(
                "%s came within the optimizer's update, or before the end of its step, where there "
                "is nothing whole to save: %s",
                name,
                self._session.newest(),
            )
        elif outcome.is_safe:
            log.info("%s: %s; started again, the training goes on from there", name, outcome.what)
        else:
            log.error("%s: %s: %s", name, outcome.what, self._session.newest())
        self._writers.close(exit_code=1, in_use=False, seconds=_WRITERS_S)

    def _leave_with(self, error: BaseException, stop: Stop) -> NoReturn:
        """An error while the run is to stop: often the stop's doing, which ends helpers as well."""
        log.error(
            "%s: the step that was to be the last one has failed", stop.reason, exc_info=error
        )
        free_memory(error)
        self._save_and_leave(stop)
        self._leave_after(stop, Outcome(False, "between update and boundary nothing is whole"))

    def _save_and_leave(self, stop: Stop) -> None:
        """Returns only where there is no point to be saved."""
        if not self._take_over():
            self._leave(stop, self._is_safe)
        outcome = self._save_aside(stop.reason, stop.deadline)
        if outcome is not None:
            self._leave_after(stop, outcome)

    def _leave_after(self, stop: Stop, outcome: Outcome) -> NoReturn:
        self._note(stop, outcome)
        self._say(stop, outcome)
        self._leave(stop, outcome.is_safe)

    def insist(self, error: BaseException) -> None:
        """Raises what ends the training once more, where Paddle has turned it into another error:
        it does so with what is raised within its C++, as in a backward.

        Args:
            error: what has come out of the training.
        """
        self._is_handed_over = True  # from here on it is the script's to catch
        if not self._is_leaving or self._stop is None:
            return
        if not isinstance(error, KeyboardInterrupt if self._stop.interrupts else SystemExit):
            raise self._error(self._stop)  # not by a name: its frame would keep it alive

    def _leave(self, stop: Stop, is_safe: bool) -> NoReturn:
        self._is_safe = is_safe
        self._is_leaving = True
        code = stop.exit_code(is_safe)
        self._writers.close(code, in_use=False, seconds=_WRITERS_S)
        self._run.close()
        is_main = threading.current_thread() is threading.main_thread()
        if (in_notebook() or not is_main) and not stop.interrupts:
            exit_now(code)  # a notebook's kernel survives SystemExit; elsewhere it ends a thread
        raise self._error(stop)

    def _error(self, stop: Stop) -> BaseException:
        if stop.interrupts:
            return KeyboardInterrupt()
        code = stop.exit_code(self._is_safe)
        return Stopped(code, self._ending, self._dropped, stop.last_moment)

    def _ending(self) -> None:
        self._is_handed_over = False  # nobody can catch it any more

    def _dropped(self) -> None:
        """The script goes on: as if the run had never been."""
        if self._deaf is not None:
            if self._is_handed_over:
                self._deaf.give_back()
        elif not self._run.is_alive():
            self._is_leaving = False
            self._run.close()

    def _is_on_its_way(self) -> bool:
        """Whether the stop is on its way out of the script; only in the main thread."""
        return not self._is_handed_over or Stopped.is_on_its_way(self._dropped)

    def _take_over(self) -> bool:
        """Returns whether it is this thread's to save; else the watching thread has."""
        while not self._take():
            if self._answered.wait(_LOOK_AGAIN_S):
                return False
        return True

    def _take(self, is_watcher: bool = False) -> bool:
        with self._lock:
            if self._claimed_by not in (None, threading.get_ident()):
                return False
            self._claimed_by, self._watcher_saves = threading.get_ident(), is_watcher
        return True

    def _give_back(self) -> None:
        with self._lock:
            self._claimed_by, self._watcher_saves = None, False

    def _save_last(self, reason: str, deadline: Optional[float]) -> Optional[Outcome]:
        boundaries = self._session.boundaries
        return None if boundaries is None else boundaries.save_last([reason], deadline)

    def _save_aside(self, reason: str, deadline: Optional[float]) -> Optional[Outcome]:
        """Saves in a thread of its own: a signal's handler, as Paddle's for a worker that was
        killed, may raise in the main thread at any moment, and would end the save with it."""
        found: List[Optional[Outcome]] = []
        over = threading.Event()  # a join that is interrupted takes the thread for ended

        def save() -> None:
            try:
                found.append(self._save_last(reason, deadline))
            finally:
                over.set()

        thread = threading.Thread(target=save, name="paddle_resume-last-save", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # a limit of the machine
            save()
        except Exception as error:
            log.warning("while the last save begins: %s: %s", type(error).__name__, error)
        while not over.is_set():
            try:
                over.wait()
            except Exception as error:
                log.warning("while the last save runs: %s: %s", type(error).__name__, error)
        return found[0] if found else Outcome(False, "the last save failed")

    def _has_point(self) -> bool:
        boundaries = self._session.boundaries
        return boundaries is not None and boundaries.points.last is not None

    def _note(self, stop: Stop, outcome: Outcome) -> None:
        self._session.events.append(
            "signal", reason=stop.reason, saved=outcome.is_safe, what=outcome.what
        )

    def _say(self, stop: Stop, outcome: Outcome) -> None:
        if outcome.is_safe:
            log.info("%s: %s; started again, it goes on from there", stop.reason, outcome.what)
        else:
            log.error("%s: %s: %s", stop.reason, outcome.what, self._session.newest())

    def _handle(self, number: int) -> None:
        """In the main thread, as soon as that runs Python."""
        leaves = self._is_leaving and not in_notebook() and Stopped.is_on_its_way(self._dropped)
        if not self._run.is_alive() and not leaves:
            self._run.close()
            if self._watch is None:  # else that is closing just now, and sees to it
                signal.raise_signal(number)
            return
        if self._is_leaving:
            return
        if self._is_to_leave and self._stop is not None:
            self._is_leaving = True
            raise self._error(self._stop)
        is_interrupt = number == signal.SIGINT and in_notebook()
        if is_interrupt and self._has_point() and self._claimed_by is None:
            raise KeyboardInterrupt  # saved on its way out, as any error

    # ------------------------------------------------------------------ the watching thread

    def _notice(self, number: int) -> None:
        if self._answered.is_set():
            return
        if number == self._policy.save_signal:
            self._save_asked = True
            return
        now = time.monotonic()
        if number == signal.SIGINT:
            if self._interrupted_at is None:
                self._interrupted_at = now
            elif now - self._interrupted_at > _SECOND_INTERRUPT_S:
                self._end_at_once()
                return
        if self._stop is not None:
            return  # launchers send it again and again
        grace = self._policy.grace_s
        name = signal.Signals(number).name
        is_interrupt = number == signal.SIGINT
        self._stop = Stop.at(now, name, 128 + number, grace, is_interrupt and in_notebook())
        log.info(  # after it: a terminal that blocks must not delay the stop
            "%s: saving at the next step, within %s%s",
            name,
            human_duration(grace),
            "; Ctrl-C once more, after a second, ends it at once" if is_interrupt else "",
        )

    def _stop_in_time(self) -> None:
        after = self._policy.stop_after_s
        if after is None or time.monotonic() < self._started + after:
            return
        reason, code = "stop_after_minutes", 128 + signal.SIGTERM
        self._stop = Stop.at(time.monotonic(), reason, code, self._policy.grace_s, False)
        log.info("stop_after_minutes=%g are over: saving at the next step", after / 60)

    def _tick(self) -> Optional[float]:
        try:
            return self._decide()
        except Exception as error:  # whatever it is, the process must still end in time
            self._complain(f"the last save failed, and is tried again: {error}")
            if self._saving is None and self._watcher_saves:
                self._give_back()
            return _LOOK_AGAIN_S

    def _decide(self) -> Optional[float]:
        """Decides whether it is up to this thread; returns when to look again."""
        if self._stop is None:
            self._stop_in_time()
        stop = self._stop
        if stop is None:
            after = self._policy.stop_after_s
            return None if after is None else max(0.0, self._started + after - time.monotonic())
        if time.monotonic() >= stop.last_moment and not stop.interrupts:
            self._end_in_time(stop)
        if self._answered.is_set():
            return None if stop.interrupts else _LOOK_AGAIN_S
        if self._saving is not None:
            self._after_saving(stop)
        elif self._claimed_by is None:
            left = stop.deadline - time.monotonic()
            boundaries = self._session.boundaries
            takes_s = None if boundaries is None else boundaries.takes_s
            kept = reserve(takes_s, self._policy.grace_s)
            if left > kept:
                return left - kept
            if self._has_point() and self._take(is_watcher=True):
                # In a thread of its own: a disk that hangs must not keep the process.
                saving = threading.Thread(
                    target=self._save, args=(stop,), name="paddle_resume-last-save", daemon=True
                )
                saving.start()
                self._saving = saving
        return _LOOK_AGAIN_S

    def _complain(self, what: str) -> None:
        if what != self._complained:
            self._complained = what
            log.error("%s", what)

    def _save(self, stop: Stop) -> None:
        outcome = self._save_last(stop.reason, stop.deadline)
        if outcome is not None:
            self._note(stop, outcome)
        self._outcome = outcome

    def _after_saving(self, stop: Stop) -> None:
        assert self._saving is not None
        self._saving.join(_LOOK_AGAIN_S)
        if self._saving.is_alive():
            return
        self._saving = None
        if self._outcome is None:
            self._give_back()  # the update began in this very moment, or the weights are swapped
            return
        self._say(stop, self._outcome)
        self._end(stop, self._outcome.is_safe)

    def _end(self, stop: Stop, is_safe: bool) -> None:
        """Ends the process while the training's thread is busy: with its help if it can."""
        code = stop.exit_code(is_safe)
        left = stop.last_moment - time.monotonic()
        self._writers.close(code, in_use=True, seconds=min(_WRITERS_S, max(left / 2, 0.1)))
        self._is_safe = is_safe
        self._is_to_leave = True
        self._answered.set()
        until = min(stop.last_moment, time.monotonic() + _UNWIND_S)
        self._wake_main()
        while time.monotonic() < until:
            if self._watch is None:
                return  # it has taken everything back and is on its way out
            time.sleep(_LOOK_AGAIN_S / 5)
        if not stop.interrupts:
            exit_now(code)

    def _end_in_time(self, stop: Stop) -> NoReturn:
        """The grace period is over: whatever the other threads are at."""
        if self._answered.is_set() or self._is_leaving:
            exit_now(stop.exit_code(self._is_safe))
        try:
            if self._claimed_by is not None:
                what = "the last save did not end"
            elif self._complained:
                what = "the last save could not be begun"
            elif self._has_point():
                what = "the weights were not those of the last step (swapped for an evaluation?)"
            else:
                what = "the step did not end, and between update and boundary nothing is whole"
            grace = human_duration(self._policy.grace_s)
            log.error("%s: within %s %s: %s", stop.reason, grace, what, self._session.newest())
            self._writers.close(exit_code=1, in_use=True, seconds=0.1)
        finally:
            exit_now(1)

    def _end_at_once(self) -> None:
        log.warning("a second Ctrl-C: ending at once; %s", self._session.newest())
        if not in_notebook():
            exit_now(128 + signal.SIGINT)
        self._interrupted_at = None
        self._is_to_leave = True
        self._wake_main()

    def _wake_main(self) -> None:
        """Has the main thread run `_handle`, even out of a wait."""
        if self._watch is not None:
            self._watch.wake()
