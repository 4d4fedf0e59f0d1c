"""One fit under paddle_resume: what to leave out, where to start, when to save."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

from paddle_resume.callbacks.auto_resume import AutoResume
from paddle_resume.callbacks.base import ResumeCallback
from paddle_resume.callbacks.fingerprint import Fingerprint, changes
from paddle_resume.callbacks.fit_session import FitHooks
from paddle_resume.callbacks.loop_state import LoopState, remaining
from paddle_resume.callbacks.periodic_saver import PeriodicSaver
from paddle_resume.data.position import DataPosition, TiedLoader, length_of
from paddle_resume.errors import ConfigError, MismatchError
from paddle_resume.observe.log import log
from paddle_resume.resumer import ResumePolicy
from paddle_resume.runtime import require_paddle, require_supported_run
from paddle_resume.saver import SavePolicy
from paddle_resume.session import Session
from paddle_resume.state.amp import Scaler
from paddle_resume.state.extra import Extra
from paddle_resume.state.gradients import Gradients
from paddle_resume.state.listeners import Listeners
from paddle_resume.state.lr import LearningRate
from paddle_resume.state.metrics import Metrics
from paddle_resume.state.model import Buffers, Network
from paddle_resume.state.optimizer import OptimizerSlots, named_parameters
from paddle_resume.state.rng import RandomStreams, set_host_streams, set_paddle_streams
from paddle_resume.types import (
    EPOCH_END,
    TRAIN,
    TRAIN_END,
    Component,
    Position,
    TrainingState,
)

__all__ = ["FitRun"]


class FitRun:
    """Follows one call of fit from its on_train_begin to its end.

    Args:
        hooks: into the fit.
        callbacks: paddle_resume's own, of one save_dir.
        epochs: fit's epochs.
    """

    def __init__(self, hooks: FitHooks, callbacks: Sequence[ResumeCallback], epochs: int) -> None:
        self._hooks = hooks
        self._epochs = epochs
        self._policy = _resume_policy(callbacks)
        self._session = Session(callbacks[0].save_dir, self._policy, _save_policy(callbacks))
        self._extra = _extra_objects(callbacks)
        self._loop = LoopState(hooks)
        self._data: Optional[DataPosition] = None
        self._components: List[Component] = []
        self._state: Optional[TrainingState] = None
        self._opened = False
        self._closed = False
        self._finished = False
        self._muted = False
        self._first_heard = 0
        self._resumed_epoch = -1
        self._epoch = 0
        self._step = 0

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
        if "_call" in vars(callback_list):
            return
        require_supported_run()
        own = [item for item in callback_list.callbacks if isinstance(item, ResumeCallback)]
        folders = {str(item.save_dir) for item in own}
        if len(folders) > 1:
            raise ConfigError(
                f"the callbacks of one fit have {len(folders)} save_dirs: "
                f"{', '.join(sorted(folders))}. Give them one and the same."
            )
        if model._optimizer is None:
            raise ConfigError("model.prepare() was called without an optimizer: nothing to train")
        hooks = FitHooks(callback_list, model)
        hooks.listen(cls(hooks, own, params["epochs"]))

    # ---------------------------------------------------------------- events

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
                    self._note_evaluation(*arguments)
        except BaseException:
            self.close()
            raise

    def run_epoch(self, loader: Any, mode: str, run: Callable[..., Any]) -> Any:
        """See `FitListener`."""
        try:
            if mode != "train":
                return self._hooks.logs if self._muted else run(TiedLoader(loader))
            return self._run_training(loader, run)
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
            self._session.close()

    def _begin_epoch(self, arguments: Sequence[Any]) -> None:
        self._epoch = arguments[0]
        if not self._opened:
            # After every callback's on_train_begin and before the first batch: an error in one of
            # them, or here, leaves nothing behind.
            self._opened = True
            self._hooks.take_over_epochs(self)
            self._open()
        if not self._muted or self._epoch >= self._first_heard:
            self._muted = False
            self._hooks.dispatch("on_epoch_begin", arguments)

    def _run_training(self, loader: Any, run: Callable[..., Any]) -> Any:
        if self._data is None:
            self._data = DataPosition(loader)
            self._components = self._all_components(loader)
        if self._state is None:
            return run(_Watched(self, self._data, self._data.batches()))
        if self._finished:
            self._session.restore(self._state, self._restored())
            _set_streams(self._state, True, True)
            self._hooks.model.stop_training = True  # out of fit's loop
        elif self._epoch == self._resumed_epoch:
            return self._resume(self._state, loader, run)
        return self._hooks.logs

    def _end_training(self, arguments: Sequence[Any]) -> None:
        if self._finished and self._state is not None:
            self._hooks.model.stop_training = self._state.parts["loop"].values["stop_training"]
        self._muted = False
        self._hooks.dispatch("on_train_end", arguments)
        if not self._finished:
            self._finish()
        self.close()

    # ---------------------------------------------------------------- the start

    def _open(self) -> None:
        layers = self._layers()
        Extra(self._extra).capture()  # what cannot be saved is an error now, not after hours
        OptimizerSlots(self._hooks.optimizer, named_parameters(layers))
        self._state = self._session.open(_expected_bytes(layers, self._hooks.optimizer))
        if self._state is None:
            return
        loop = self._state.parts["loop"].values
        self._resumed_epoch = loop["epoch_index"]
        # What follows a run's very end is the next epoch.
        ended = self._state.position.phase == TRAIN_END
        self._first_heard = self._resumed_epoch + 1 if ended else self._resumed_epoch
        self._step = self._state.position.step
        self._hooks.model.stop_training = False  # a value of before would end the muted epochs
        self._finished = self._is_finished(self._state, remaining(loop, self._hooks.num_iters))
        self._muted = True
        if self._finished:
            self._first_heard = self._epochs

    def _is_finished(self, state: TrainingState, left: Optional[int]) -> bool:
        position, epochs = state.position, self._epochs
        if self._hooks.num_iters is not None and left is not None and left < 0:
            raise MismatchError(
                f"num_iters={self._hooks.num_iters}, but {-left} iterations more than that were "
                f"trained (step {position.step}). Raise num_iters, or give another save_dir for a "
                "new run."
            )
        if epochs < position.epoch or (epochs == position.epoch and position.phase == TRAIN):
            raise MismatchError(
                f"epochs={epochs}, but {position.epoch} epoch(s) and {position.batch} batch(es) "
                f"were trained (step {position.step}). Raise epochs, or give another save_dir for "
                "a new run."
            )
        mark = self._session.finished()
        if mark is None:
            done = epochs == position.epoch and position.phase == TRAIN_END
        elif self._hooks.num_iters is not None:
            done = left == 0
        elif mark["why"] == "stopped":
            done = epochs <= mark["epochs"]
        else:
            done = epochs == position.epoch
        if done:
            self._say_finished(position, mark)
        return done

    def _say_finished(self, position: Position, mark: Optional[Mapping[str, Any]]) -> None:
        self._session.mark_finished()
        why = {"stopped": "it was stopped early", "num_iters": "all of num_iters are done"}.get(
            mark["why"] if mark is not None else "epochs", f"all of epochs={self._epochs} are done"
        )
        log.info(
            "this run is finished (step %d, %s): its final state is loaded and fit returns. To "
            "train longer, raise %s; for a new run, give another save_dir.",
            position.step,
            why,
            "num_iters" if self._hooks.num_iters is not None else "epochs",
        )

    def _resume(self, state: TrainingState, loader: Any, run: Callable[..., Any]) -> Any:
        assert self._data is not None
        self._say_changes(state)
        self._session.restore(state, self._restored())
        self._state = None
        saved = state.parts["data"]
        start = _batch_to_start_at(state.position, saved.values, self._data)
        log.info(
            "resumed at epoch %d, batch %d (step %d)", self._epoch + 1, start, state.position.step
        )
        batches = self._data.batches(
            start, saved, lambda host, paddle: _set_streams(state, host, paddle)
        )
        if self._muted:  # that epoch is over; only its data position is caught up with
            for _ in batches:
                pass
            return self._hooks.logs
        if self._loop.iterations_left == 0:
            batches = _none_of(batches)
        return run(_Watched(self, self._data, batches), start)

    def _say_changes(self, state: TrainingState) -> None:
        before = state.parts["fingerprint"].values["settings"]
        now = next(c for c in self._components if isinstance(c, Fingerprint)).settings
        override = self._policy is not None and self._policy.lr_policy == "override"
        for change in changes(before, now, override):
            log.warning("changed since the checkpoint: %s", change)

    # ---------------------------------------------------------------- boundaries

    def _after_batch(self, index: int, logs: Mapping[str, Any]) -> None:
        assert self._data is not None
        self._step += 1
        left = self._hooks.iterations_left()
        self._loop.iterations_left = None if left is None else left - 1
        length = length_of(self._data)
        epoch_ends = length is not None and index + 1 >= length
        self._boundary(index + 1, epoch_ends, logs)

    def exhausted(self) -> None:
        """The loader gave no more: the end of an epoch whose length nobody could tell."""
        if self._data is not None and length_of(self._data) is None and self._step:
            self._loop.iterations_left = self._hooks.iterations_left()
            self._boundary(self._data.done, True, self._hooks.logs)

    def _boundary(self, done: int, epoch_ends: bool, logs: Mapping[str, Any]) -> None:
        if epoch_ends:
            position = Position(self._epoch + 1, 0, self._step, EPOCH_END)
        else:
            position = Position(self._epoch, done, self._step, TRAIN)
        reasons = self._session.due(position, epoch_ends)
        ends = self._epoch + 1 >= self._epochs or self._hooks.model.stop_training
        if (epoch_ends and ends) or self._loop.iterations_left == 0:
            reasons.append("final")
        if reasons:
            self._save(position, done, reasons, logs)

    def _save(
        self, position: Position, done: int, reasons: Sequence[str], logs: Mapping[str, Any]
    ) -> None:
        self._loop.epoch_index, self._loop.batches_done = self._epoch, done
        self._session.save(position, self._components, reasons, _metrics(logs))

    def _note_evaluation(self, logs: Mapping[str, Any]) -> None:
        self._session.events.append(
            "eval", step=self._step, epoch=self._epoch + 1, metrics=_metrics(logs)
        )

    def _finish(self) -> None:
        assert self._data is not None
        if not self._session.saves:
            return
        if self._session.saved_step != self._step:
            self._loop.iterations_left = self._hooks.iterations_left()
            position = Position(self._epoch + 1, 0, self._step, TRAIN_END)
            self._save(position, self._data.done, ["final"], self._hooks.logs)
        why = "epochs"
        if self._hooks.iterations_left() == 0:
            why = "num_iters"
        elif self._hooks.model.stop_training and self._epoch + 1 < self._epochs:
            why = "stopped"
        self._session.finish(self._step, why, epochs=self._epochs)

    # ---------------------------------------------------------------- the parts

    def _layers(self) -> Dict[str, Any]:
        layers = {"model": self._hooks.model.network}
        loss = self._hooks.loss
        if isinstance(loss, require_paddle().nn.Layer) and (loss.parameters() or loss.buffers()):
            layers["loss"] = loss
        return layers

    def _all_components(self, loader: Any) -> List[Component]:
        assert self._data is not None
        hooks, layers = self._hooks, self._layers()
        parameters = named_parameters(layers)
        partial = self._policy is not None and self._policy.partial
        lr_policy = self._policy.lr_policy if self._policy is not None else "restore"
        others = [item for item in hooks.callbacks if not isinstance(item, ResumeCallback)]
        return [
            *(Network(layer, name, partial) for name, layer in layers.items()),
            Buffers(layers),
            OptimizerSlots(hooks.optimizer, parameters, partial=partial),
            LearningRate(hooks.optimizer, lr_policy),
            Scaler(hooks.scaler, hooks.create_scaler),
            Gradients(parameters),
            Metrics(hooks.metrics),
            self._loop,
            Extra(self._extra),
            Listeners(others),
            Fingerprint(hooks, loader),
            RandomStreams(),
            self._data,
        ]

    def _restored(self) -> List[Component]:
        """The parts to restore at once; a loader sets the streams when it is ready."""
        return [part for part in self._components if part.name not in ("rng", "data")]


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


def _none_of(batches: Iterator[Any]) -> Iterator[Any]:
    """Moves to where the batches start, and gives none: num_iters is used up."""
    next(batches, None)
    return iter(())


def _resume_policy(callbacks: Sequence[ResumeCallback]) -> Optional[ResumePolicy]:
    found = [item.policy for item in callbacks if isinstance(item, AutoResume)]
    if len(found) > 1:
        raise ConfigError(f"{len(found)} AutoResume callbacks in one fit: keep one")
    return found[0] if found else None


def _save_policy(callbacks: Sequence[ResumeCallback]) -> Optional[SavePolicy]:
    found = [item.policy for item in callbacks if isinstance(item, PeriodicSaver)]
    if not found:
        return None
    return SavePolicy(
        triggers=tuple(trigger for policy in found for trigger in policy.triggers),
        retention=tuple(rule for policy in found for rule in policy.retention),
        in_background=all(policy.in_background for policy in found),
    )


def _extra_objects(callbacks: Sequence[ResumeCallback]) -> Dict[str, Any]:
    objects: Dict[str, Any] = {}
    for callback in callbacks:
        for name, item in callback.extra.items():
            if objects.setdefault(name, item) is not item:
                raise ConfigError(f"extra: two different objects are called {name!r}")
    return objects


def _set_streams(state: TrainingState, host: bool, paddle: bool) -> None:
    streams = state.parts["rng"].values
    if host:
        set_host_streams(streams)
    if paddle:
        for problem in set_paddle_streams(streams["paddle"]):
            log.warning("the resume is not exact: %s", problem)


def _batch_to_start_at(position: Position, saved: Mapping[str, Any], data: DataPosition) -> int:
    """Finds the resumed epoch's first batch, where batch size or length may have changed."""
    done, length = int(saved["batches_done"]), length_of(data)
    before, now = saved["batch_size"], data.batch_size
    if position.phase != TRAIN:
        return done if length is None else length
    if before and now and before != now:
        done = done * before // now
    return done if length is None else min(done, length)


def _metrics(logs: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: value for name, value in logs.items() if name not in ("step", "batch_size")}


def _expected_bytes(layers: Mapping[str, Any], optimizer: Any) -> int:
    """Estimates a checkpoint before the optimizer has made its slots."""
    slots = {"SGD": 0, "Momentum": 1, "Adagrad": 1, "RMSProp": 3}.get(type(optimizer).__name__, 2)
    total = 0
    for layer in layers.values():
        for tensor in layer.state_dict().values():
            size = int(tensor.size) * tensor.element_size()
            total += size * (1 if tensor.stop_gradient else 1 + slots)
    return total
