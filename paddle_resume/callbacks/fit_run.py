"""One fit under paddle_resume: what to leave out, where to start, when to save."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from paddle_resume.callbacks import fit_start, merge
from paddle_resume.callbacks.base import ResumeCallback
from paddle_resume.callbacks.fingerprint import Fingerprint, changes
from paddle_resume.callbacks.fit_parts import FitParts
from paddle_resume.callbacks.fit_session import FitHooks
from paddle_resume.callbacks.loop_state import LoopState, remaining
from paddle_resume.data.position import DataPosition, TiedLoader
from paddle_resume.data.source import length_of
from paddle_resume.errors import ConfigError
from paddle_resume.observe.log import log
from paddle_resume.runtime import require_supported_run
from paddle_resume.session import Session
from paddle_resume.state.rng import set_host_streams, set_paddle_streams
from paddle_resume.types import EPOCH_END, TRAIN, TRAIN_END, Position, TrainingState

__all__ = ["FitRun"]


class FitRun:
    """Follows one call of fit from its on_train_begin to its end.

    Args:
        hooks: into the fit.
        callbacks: paddle_resume's own.
        epochs: fit's epochs.

    Raises:
        ConfigError: the callbacks do not go together.
    """

    def __init__(self, hooks: FitHooks, callbacks: Sequence[ResumeCallback], epochs: int) -> None:
        self._hooks = hooks
        self._epochs = epochs
        self._policy = merge.resume_policy(callbacks)
        self._extra = merge.extra_objects(callbacks)
        save_dir, saving = merge.one_save_dir(callbacks), merge.save_policy(callbacks)
        self._session = Session(save_dir, self._policy, saving)
        self._loop = LoopState(hooks)
        self._parts: Optional[FitParts] = None
        self._data: Optional[DataPosition] = None
        self._settings: Dict[str, Any] = {}
        self._state: Optional[TrainingState] = None
        self._finished = False
        self._muted = False
        self._first_heard = 0
        self._resumed_epoch = -1
        self._stops_anew = False
        self._epoch_ended = False
        self._epoch = 0
        self._step = 0
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
        hooks.listen(cls(hooks, own, params["epochs"]))

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
                if name == "on_train_batch_end":
                    self._after_batch(*arguments)
                elif name == "on_eval_end":
                    self._session.note_evaluation(self._step, self._epoch + 1, *arguments)
        except BaseException:
            self.close()
            raise

    def run_epoch(self, loader: Any, mode: str, run: Callable[..., Any]) -> Any:
        """See `FitListener`."""
        try:
            if mode == "train":
                return self._run_training(loader, run)
            return self._hooks.logs if self._muted else run(TiedLoader(loader, self._data))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Takes everything back; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._hooks.release()
        try:
            if self._data is not None:
                self._data.close()
        finally:
            self._data, self._parts, self._state = None, None, None
            self._session.close()

    # ------------------------------------------------------------------ the way to the start

    def _begin_epoch(self, arguments: Sequence[Any]) -> None:
        self._epoch = arguments[0]
        if self._parts is None:
            # After every callback's on_train_begin and before the first batch: an error in one of
            # them, or here, leaves nothing behind.
            self._hooks.take_over_epochs(self)
            self._parts = FitParts(self._hooks, self._policy, self._loop, self._extra)
            self._state = self._session.open(self._parts.expected_bytes(), self)
            if self._state is not None:
                self._plan(self._state)
            else:
                self._session.begin(step=0)
        if self._epoch >= self._first_heard:
            self._muted = False
            self._hooks.dispatch("on_epoch_begin", arguments)

    def _plan(self, state: TrainingState) -> None:
        """Decides which epochs nobody hears of."""
        position, loop = state.position, state.parts["loop"].values
        num_iters = self._hooks.num_iters
        left = remaining(loop, num_iters, position.step)
        fit_start.refuse_to_go_back(position, self._epochs, num_iters, left)
        mark = self._session.finished()
        why = fit_start.why_finished(position, self._epochs, left, mark)
        # One that had ended, and is to train longer, does not end again at once.
        self._stops_anew = mark is not None or position.phase == TRAIN_END
        self._muted = True
        self._step = position.step
        self._resumed_epoch = loop["epoch_index"]
        self._first_heard = self._resumed_epoch + (position.phase == TRAIN_END)
        self._hooks.model.stop_training = False  # one of before would end the muted epochs
        if why is not None:
            self._finished, self._first_heard = True, self._epochs
            self._session.say_finished(position, why, self._epochs)

    def _run_training(self, loader: Any, run: Callable[..., Any]) -> Any:
        assert self._parts is not None
        if self._data is None:
            self._data = DataPosition(loader)
            fingerprint = Fingerprint(self._hooks, loader)
            self._settings = fingerprint.settings
            self._parts.add_data(self._data, fingerprint)
        if self._state is None:
            return run(_Watched(self, self._data, self._data.batches()))
        if self._finished:
            self._restore(self._state)
            _set_streams(self._state.parts["rng"].values, True, True)
            self._hooks.model.stop_training = True  # out of fit's loop
        elif self._epoch == self._resumed_epoch:
            start, batches = self._resume(self._state, self._data)
            self._state = None  # as large as the model: not for the whole epoch
            if not self._muted:
                return run(_Watched(self, self._data, batches), start)
            for _ in batches:  # that epoch is over; only the data position is caught up with
                pass
        return self._hooks.logs

    def _resume(self, state: TrainingState, data: DataPosition) -> Tuple[int, Iterator[Any]]:
        self._restore(state)
        override = self._policy is not None and self._policy.lr_policy == "override"
        before = state.parts["fingerprint"].values["settings"]
        for change in changes(before, self._settings, override):
            log.warning("changed since the checkpoint: %s", change)
        if self._stops_anew:
            self._hooks.model.stop_training = False
        self._epoch_ended = state.position.phase != TRAIN
        saved, length = state.parts["data"], length_of(data)
        start = fit_start.batch_to_start_at(state.position, saved.values, length, data.batch_size)
        if state.position.phase == TRAIN:
            log.info(
                "resumed in epoch %d, after batch %d (step %d)", self._epoch + 1, start, self._step
            )
        else:
            log.info("resumed after epoch %d (step %d)", self._epoch + 1, self._step)
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
        self._session.restore(state, self._parts.restored, self._parts.restored_by_others)
        self._session.begin(self._step)

    # ------------------------------------------------------------------ boundaries

    def _after_batch(self, index: int, logs: Mapping[str, Any]) -> None:
        assert self._data is not None
        self._step += 1
        left = self._hooks.iterations_left()
        self._loop.iterations_left = None if left is None else left - 1
        self._boundary(index + 1, index + 1 == length_of(self._data), logs)

    def exhausted(self) -> None:
        """The loader gave no more: the end of an epoch that its length did not tell."""
        assert self._data is not None
        if self._data.done and self._data.done != length_of(self._data):
            self._loop.iterations_left = self._hooks.iterations_left()
            self._boundary(self._data.done, True, self._hooks.logs)

    def _boundary(self, done: int, epoch_ends: bool, logs: Mapping[str, Any]) -> None:
        if epoch_ends:
            position = Position(self._epoch + 1, 0, self._step, EPOCH_END)
        else:
            position = Position(self._epoch, done, self._step, TRAIN)
        self._epoch_ended = epoch_ends
        reasons = self._session.due(position, epoch_ends)
        last_epoch = self._epoch + 1 >= self._epochs or self._hooks.model.stop_training
        if (epoch_ends and last_epoch) or self._loop.iterations_left == 0:
            reasons.append("final")
        if reasons:
            self._save(position, done, reasons, logs)

    def _save(
        self, position: Position, done: int, reasons: Sequence[str], logs: Mapping[str, Any]
    ) -> None:
        assert self._parts is not None
        self._loop.epoch_index, self._loop.batches_done = self._epoch, done
        self._loop.step = self._step
        self._session.save(position, self._parts.all, reasons, logs)

    # ------------------------------------------------------------------ the end

    def _end_training(self, arguments: Sequence[Any]) -> None:
        self._muted = False
        if self._finished and self._state is not None:
            saved = self._state.parts["loop"].values["stop_training"]
            self._hooks.model.stop_training = saved
            self._hooks.dispatch("on_train_end", arguments)
        else:
            # First: an on_train_end may change the weights, and it is heard again at a restart.
            self._save_the_end()
            self._hooks.dispatch("on_train_end", arguments)
            self._session.finish(self._step, self._why_ended(), epochs=self._epochs)
        self.close()

    def _save_the_end(self) -> None:
        assert self._data is not None
        if self._epoch_ended and self._session.wait_for_saved_step() != self._step:
            self._loop.iterations_left = self._hooks.iterations_left()
            position = Position(self._epoch + 1, 0, self._step, TRAIN_END)
            self._save(position, self._data.done, ["final"], self._hooks.logs)

    def _why_ended(self) -> str:
        if self._hooks.iterations_left() == 0:
            return "num_iters"
        early = self._hooks.model.stop_training and self._epoch + 1 < self._epochs
        return "stopped" if early else "epochs"


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
    if host:
        set_host_streams(streams)
    if paddle:
        for problem in set_paddle_streams(streams["paddle"]):
            log.warning("the resume is not exact: %s", problem)
