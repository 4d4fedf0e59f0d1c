"""One fit under paddle_resume: what to leave out, where to start, when to save."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from paddle_resume.best import BestScores
from paddle_resume.callbacks import fit_start, merge
from paddle_resume.callbacks.base import ResumeCallback
from paddle_resume.callbacks.fingerprint import Fingerprint, changes, trainable
from paddle_resume.callbacks.fit_parts import OPTIONAL, FitParts
from paddle_resume.callbacks.fit_session import FitHooks
from paddle_resume.callbacks.fit_start import Restart
from paddle_resume.callbacks.loop_state import LoopState
from paddle_resume.data.position import DataPosition, TiedLoader
from paddle_resume.data.source import length_of
from paddle_resume.emergency import Emergency
from paddle_resume.errors import ConfigError, ResumeError
from paddle_resume.observe.log import log
from paddle_resume.runtime import require_supported_run
from paddle_resume.session import Session
from paddle_resume.state import curves
from paddle_resume.state.rng import set_host_streams, set_paddle_streams
from paddle_resume.types import EPOCH_END, TRAIN, TRAIN_END, Captures, Position, TrainingState

__all__ = ["FitRun"]


class FitRun:
    """Follows one call of fit from its on_train_begin to its end.

    Args:
        hooks: into the fit.
        callbacks: paddle_resume's own.
        params: fit's parameters.

    Raises:
        ConfigError: the callbacks do not go together, or not with this fit.
    """

    def __init__(
        self, hooks: FitHooks, callbacks: Sequence[ResumeCallback], params: Mapping[str, Any]
    ) -> None:
        self._hooks = hooks
        self._epochs: int = params["epochs"]
        self._policy = merge.resume_policy(callbacks)
        self._extra = merge.extra_objects(callbacks)
        evaluates = hooks.eval_loader is not None
        best = merge.best_policy(callbacks, params["metrics"], evaluates)
        saving = merge.save_policy(callbacks, best)
        save_dir, given = merge.one_save_dir(callbacks), callbacks[0].given_save_dir
        key = merge.sign_key(callbacks)
        self._session = Session(save_dir, given, self._policy, saving, key)
        self._scores = None if best is None else BestScores(best)
        self._writers = _Writers(hooks)
        stopping = merge.emergency_policy(callbacks)
        self._emergency: Optional[Emergency] = None
        if stopping is not None:
            self._emergency = Emergency(stopping, self._session, self, self._writers)
        self._loop = LoopState(hooks)
        self._parts: Optional[FitParts] = None
        self._data: Optional[DataPosition] = None
        self._evaluation: Optional[TiedLoader] = None
        self._settings: Dict[str, Any] = {}
        self._restart: Optional[Restart] = None
        self._muted = False
        self._epoch_ended = False
        self._epoch = 0
        self._position = Position(0, 0, 0)
        self._closed = False

    @classmethod
    def join(cls, callback_list: Any, model: Any, params: Mapping[str, Any]) -> None:
        """Starts the run of a fit, once for all of its callbacks.

        Args:
            callback_list: hapi's list.
            model: the `paddle.Model`.
            params: fit's parameters.

        Raises:
            ConfigError: the callbacks do not go together, or the fit cannot be protected.
        """
        if FitHooks.joined(callback_list):
            return
        require_supported_run()
        other = FitHooks.listener_of(model)
        if other is not None:
            if other.is_alive():
                raise ConfigError("this model is being trained by another fit, with its own run")
            other.close()
        hooks = FitHooks(callback_list, model)
        if hooks.optimizer is None:
            raise ConfigError("model.prepare() was called without an optimizer: nothing to train")
        own = [item for item in callback_list.callbacks if isinstance(item, ResumeCallback)]
        hooks.listen(cls(hooks, own, params))

    def is_alive(self) -> bool:
        """See `FitListener`."""
        return not self._closed and self._hooks.is_running()

    def dispatch(self, name: str, arguments: Sequence[Any]) -> None:
        """See `FitListener`."""
        try:
            if name == "on_epoch_begin":
                self._begin_epoch(arguments)
            elif name == "on_train_end":
                self._end_training(arguments)
            elif not self._muted:
                self._hooks.dispatch(name, arguments)
                self._after(name, arguments)
        except BaseException as error:
            self._fail(error)
            raise

    def run_epoch(self, loader: Any, mode: str, run: Callable[..., Any]) -> Any:
        """See `FitListener`."""
        try:
            if mode == "train":
                return self._run_training(loader, run)
            if self._muted:
                return self._hooks.logs
            self._evaluation = TiedLoader(loader, self._data)
            return run(self._evaluation)
        except BaseException as error:
            self._fail(error)
            raise

    def close(self) -> None:
        """Takes everything back; may be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._emergency is not None:
            self._emergency.retire()
        self._hooks.release()
        hurry = self._emergency is not None and self._emergency.is_leaving
        with contextlib.ExitStack() as rest:
            if self._emergency is not None:
                rest.callback(self._emergency.close)  # last: it keeps watch over the others
            rest.callback(self._session.close)
            for data in (self._data, self._evaluation):
                if data is not None:
                    rest.callback(data.close, hurry)
            self._data, self._evaluation = None, None
            self._parts, self._restart = None, None

    def _fail(self, error: BaseException) -> None:
        emergency = self._emergency
        try:
            if emergency is not None and not self._closed:
                emergency.rescue(error)
        finally:
            self.close()
            if emergency is not None:
                emergency.insist(error)

    # ------------------------------------------------------------------ the way to the start

    def _begin_epoch(self, arguments: Sequence[Any]) -> None:
        self._epoch = arguments[0]
        if self._parts is None:
            # After every callback's on_train_begin and before the first batch: an error in one of
            # them, or here, leaves nothing behind.
            self._hooks.take_over_epochs(self)
            self._parts = FitParts(
                self._hooks,
                self._policy,
                self._loop,
                self._extra,
                self._scores,
                self._is_finished,
            )
            state = self._session.open(self._parts.expected_bytes(), self)
            if state is not None:
                self._plan(state)
            else:
                self._begin(self._position)
        if self._restart is None or self._epoch >= self._restart.first_heard:
            self._muted = False
            self._hooks.dispatch("on_epoch_begin", arguments)
            self._after("on_epoch_begin", arguments)

    def _plan(self, state: TrainingState) -> None:
        mark = self._session.finished()
        with fit_start.as_written():
            self._restart = fit_start.restart(state, self._epochs, self._hooks.num_iters, mark)
        self._muted = True
        self._position = state.position
        self._hooks.model.stop_training = False  # one of before would end the muted epochs

    def _is_finished(self) -> bool:
        return self._restart is not None and self._restart.why_finished is not None

    def _run_training(self, loader: Any, run: Callable[..., Any]) -> Any:
        assert self._parts is not None
        if self._data is None:
            self._data = DataPosition(loader)
            fingerprint = Fingerprint(self._hooks, loader)
            self._settings = fingerprint.settings
            self._parts.add_data(self._data, fingerprint)
            if self._restart is not None and self._restart.had_finished:
                self._refuse_another(self._restart)
        restart = self._restart
        if restart is None:
            return run(_Watched(self, self._data, self._data.batches()))
        if restart.why_finished is not None:
            self._load_the_end(restart)
        elif self._epoch == restart.epoch:
            start, batches = self._resume(restart, self._data)
            self._restart = None  # its state is as large as the model: not for the whole epoch
            if not self._muted:
                return run(_Watched(self, self._data, batches), start)
            for _ in batches:  # that epoch is over; only the data position is caught up with
                pass
        return self._hooks.logs

    def _refuse_another(self, restart: Restart) -> None:
        parts = restart.state.parts
        before = parts["fingerprint"].values["settings"]
        at_the_end = trainable(parts["model"].values["stop_gradient"])
        if self._policy is None or not self._policy.partial:
            fit_start.refuse_another(before, self._settings, at_the_end)

    def _load_the_end(self, restart: Restart) -> None:
        assert restart.why_finished is not None
        state = restart.state
        self._session.say_finished(state.position, restart.why_finished, self._epochs)
        before = state.parts["fingerprint"].values["settings"]
        if before["dataset_length"] != self._settings["dataset_length"]:
            log.warning(
                "the finished run's data had %s samples and this fit's has %s: nothing is trained "
                "on it. Another fold needs a save_dir of its own.",
                before["dataset_length"],
                self._settings["dataset_length"],
            )
        self._restore(state)
        _set_streams(restart.state.parts["rng"].values, True, True)
        self._hooks.model.stop_training = True  # out of fit's loop

    def _resume(self, restart: Restart, data: DataPosition) -> Tuple[int, Iterator[Any]]:
        state = restart.state
        self._restore(state)
        override = self._policy is not None and self._policy.lr_policy == "override"
        with fit_start.as_written():
            before = state.parts["fingerprint"].values["settings"]
            for change in changes(before, self._settings, override):
                log.warning("changed since the checkpoint: %s", change)
        if restart.stops_anew:
            self._hooks.model.stop_training = False
        self._epoch_ended = state.position.phase != TRAIN
        length = length_of(data)
        with fit_start.as_written():
            saved, size = state.parts["data"], data.batch_size
            start = fit_start.batch_to_start_at(state.position, saved.values, length, size)
        where = f"in epoch {self._epoch + 1}, after batch {start}"
        if self._epoch_ended:
            where = f"after epoch {self._epoch + 1}"
        log.info("resumed %s (step %d)", where, state.position.step)
        streams = state.parts["rng"].values
        batches = data.batches(
            start, saved, lambda host, paddle: _set_streams(streams, host, paddle)
        )
        if self._loop.iterations_left == 0:
            next(batches, None)  # moves there, and num_iters lets nothing more through
            batches = iter(())
        return start, batches

    def _restore(self, state: TrainingState) -> None:
        assert self._parts is not None
        parts = self._parts
        self._session.restore(state, parts.restored, parts.restored_by_others, OPTIONAL)
        self._begin(state.position)

    def _begin(self, start: Position) -> None:
        self._session.begin(
            start,
            self._all_parts,
            self._writers.flush,
            self._scores,
            every=self._emergency is not None,
        )
        boundaries = self._session.boundaries
        if boundaries is not None and self._parts is not None:
            self._hooks.gate_updates(boundaries.begin_update)
            self._hooks.after_clearing(self._parts.gradients.note_cleared)
        if self._emergency is not None and not self._is_finished():
            self._emergency.start()

    def _all_parts(self) -> Sequence[Captures]:
        if self._parts is None:
            raise ResumeError("the training is over: there is nothing of it to copy")
        return self._parts.all

    # ------------------------------------------------------------------ boundaries

    def _after(self, name: str, arguments: Sequence[Any]) -> None:
        """What follows on an event that all callbacks have heard."""
        boundaries = self._session.boundaries
        if name == "on_train_batch_end":
            self._after_batch(*arguments)
        elif name == "on_eval_begin" and boundaries is not None:
            boundaries.begin_evaluation()
        elif name == "on_eval_end" and boundaries is not None:
            boundaries.end_evaluation(self._position, *arguments)
        if self._emergency is not None:
            self._emergency.leave_if_asked()

    def _after_batch(self, index: int, logs: Mapping[str, Any]) -> None:
        assert self._data is not None
        left = self._hooks.iterations_left()
        self._loop.iterations_left = None if left is None else left - 1
        step = self._position.step + 1
        self._boundary(index + 1, step, index + 1 == length_of(self._data), logs)

    def exhausted(self) -> None:
        """The loader gave no more: the end of an epoch that its length did not tell."""
        assert self._data is not None
        if self._data.done and self._data.done != length_of(self._data):
            self._loop.iterations_left = self._hooks.iterations_left()
            self._boundary(self._data.done, self._position.step, True, self._hooks.logs)

    def _boundary(self, done: int, step: int, epoch_ends: bool, logs: Mapping[str, Any]) -> None:
        if epoch_ends:
            self._position = Position(self._epoch + 1, 0, step, EPOCH_END)
        else:
            self._position = Position(self._epoch, done, step, TRAIN)
        self._epoch_ended = epoch_ends
        last_epoch = self._epoch + 1 >= self._epochs or self._hooks.model.stop_training
        is_last = (epoch_ends and last_epoch) or self._loop.iterations_left == 0
        self._reach(done, logs, epoch_ends, ["final"] if is_last else [])

    def _reach(
        self, done: int, logs: Mapping[str, Any], epoch_ends: bool, asked: List[str]
    ) -> None:
        boundaries = self._session.boundaries
        if boundaries is None:
            return
        self._loop.epoch_index, self._loop.batches_done = self._epoch, done
        self._loop.step = self._position.step
        if self._emergency is not None and self._emergency.save_asked():
            asked.append("signal")
        self._hooks.gate_updates(boundaries.begin_update)  # a GradScaler may be new
        evaluates = self._hooks.eval_loader is not None
        boundaries.reach(self._position, logs, epoch_ends, evaluates, asked)

    # ------------------------------------------------------------------ the end

    def _end_training(self, arguments: Sequence[Any]) -> None:
        self._muted = False
        if self._restart is not None and self._is_finished():
            saved = self._restart.state.parts["loop"].values["stop_training"]
            self._hooks.model.stop_training = saved
            self._hooks.dispatch("on_train_end", arguments)
        else:
            # First: an on_train_end may change the weights, and it is heard again at a restart.
            self._save_the_end()
            ending = self._ending()
            self._hooks.dispatch("on_train_end", arguments)
            step, why = self._position.step, self._why_ended()
            self._session.finish(step, why, epochs=self._epochs, ending=ending)
            if self._emergency is not None:
                self._emergency.leave_if_asked()
        self.close()

    def _ending(self) -> Dict[str, Any]:
        boundaries = self._session.boundaries
        if boundaries is None or self._parts is None:
            return {}
        return boundaries.ending(self._parts.at_the_end)

    def _save_the_end(self) -> None:
        assert self._data is not None
        if self._epoch_ended and self._session.wait_for_saved_step() != self._position.step:
            self._loop.iterations_left = self._hooks.iterations_left()
            self._position = Position(self._epoch + 1, 0, self._position.step, TRAIN_END)
            self._reach(self._data.done, self._hooks.logs, False, ["final"])

    def _why_ended(self) -> str:
        if self._hooks.iterations_left() == 0:
            return "num_iters"
        early = self._hooks.model.stop_training and self._epoch + 1 < self._epochs
        return "stopped" if early else "epochs"


class _Writers:
    """See `Writers`; the list is read anew each time, for a callback makes its writer late."""

    def __init__(self, hooks: FitHooks) -> None:
        self._hooks = hooks

    def flush(self) -> None:
        curves.flush_writers(self._hooks.callbacks)

    def close(self, exit_code: int, in_use: bool, seconds: float) -> None:
        curves.close_writers(self._hooks.callbacks, exit_code, seconds, in_use)


class _Watched:
    """The rest of an epoch, with the whole epoch's length."""

    def __init__(self, run: FitRun, data: DataPosition, batches: Iterator[Any]) -> None:
        self._run = run
        self._data = data
        self._batches = batches

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[Any]:
        yield from self._batches
        self._run.exhausted()


def _set_streams(streams: Mapping[str, Any], host: bool, paddle: bool) -> None:
    with fit_start.as_written():
        if host:
            set_host_streams(streams)
        if paddle:
            for problem in set_paddle_streams(streams["paddle"]):
                log.warning("the resume is not exact: %s", problem)
