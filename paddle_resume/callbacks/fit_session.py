"""The only file that knows how `paddle.Model.fit` works inside.

`fit` runs `for epoch in range(epochs)`: on_epoch_begin, `_run_one_epoch` over the training data,
on_epoch_end, then on_eval_begin, `_run_one_epoch` over the evaluation data, on_eval_end. All
callbacks are reached through `CallbackList._call`. Instance attributes put in front of these two
methods are enough to leave out what is done and to start in the middle of an epoch; nothing of
Paddle is copied. The guards make an unknown Paddle an error instead of a wrong training.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from typing import Any, Callable, Dict, Iterable, List, Optional, Protocol, Sequence, Tuple

from paddle_resume.errors import ConfigError
from paddle_resume.runtime import require_paddle

__all__ = ["FitHooks", "FitListener", "find_callback_list"]

_RUN_ARGUMENTS = ["self", "data_loader", "callbacks", "mode", "logs"]
_FIT_USES = {
    "on_begin",
    "on_epoch_begin",
    "_run_one_epoch",
    "on_epoch_end",
    "on_end",
    "stop_training",
    "num_iters",
    "_accumulate",
}
_BATCH_USES = {"backward", "minimize", "clear_gradients", "_scaler"}
_UPDATES = ("minimize", "step")
_NOTHING = object()
_RUN_USES = {"enumerate", "on_batch_begin", "on_batch_end", "num_iters", "_reset_metrics"}


class FitListener(Protocol):
    """What the hooks call."""

    def is_alive(self) -> bool:
        """Whether its fit is still running."""
        ...

    def close(self) -> None:
        """Takes everything back; may be called twice."""
        ...

    def dispatch(self, name: str, arguments: Sequence[Any]) -> None:
        """Called instead of the dispatch of one event to all callbacks."""
        ...

    def run_epoch(self, loader: Any, mode: str, run: Callable[..., Any]) -> Any:
        """Called instead of `_run_one_epoch`.

        Args:
            loader: what to iterate over.
            mode: `"train"` or `"eval"`.
            run: `run(loader, start=0)` is the original, counting its steps from `start`.
        """
        ...


class FitHooks:
    """The hooks into one call of fit, and what of hapi's state a checkpoint needs.

    Args:
        callback_list: hapi's list of this fit.
        model: the `paddle.Model`.

    Raises:
        ConfigError: this Paddle's fit is not one that is known.
    """

    def __init__(self, callback_list: Any, model: Any) -> None:
        _check_hapi(type(model), type(callback_list), type(model._adapter))
        self._list = callback_list
        self._fit = _frame_of_fit(model)
        self.model = model
        self.num_iters: Optional[int] = getattr(model, "num_iters", None)
        self._dispatch = type(callback_list)._call.__get__(callback_list)
        self._before: List[Tuple[Any, str, Any]] = []

    def listen(self, listener: FitListener) -> None:
        """Puts the hook on the events of this fit. It goes with hapi's list."""
        self._list._call = lambda name, *arguments: listener.dispatch(name, arguments)

    def take_over_epochs(self, listener: FitListener) -> None:
        """Puts the hook on the model's epochs; `release` takes it away."""
        if "_run_one_epoch" in vars(self.model):
            raise ConfigError(
                "the script has replaced model._run_one_epoch, on which paddle_resume hooks itself "
                "as well: leave one of them out"
            )
        original = type(self.model)._run_one_epoch.__get__(self.model)

        def run_one_epoch(data_loader: Any, callbacks: Any, mode: str, **more: Any) -> Any:
            def run(loader: Any, start: int = 0) -> Any:
                method = _counting_from(original, start) if start else original
                return method(loader, callbacks, mode, **more)

            return listener.run_epoch(data_loader, mode, run)

        run_one_epoch.listener = listener  # type: ignore[attr-defined]
        self._put(self.model, "_run_one_epoch", run_one_epoch)

    def gate_updates(self, begin_update: Callable[[], None]) -> None:
        """Has a function called before each update; call it again once there is a GradScaler.

        Args:
            begin_update: may hold the update back.
        """
        for owner in (self.optimizer, self.scaler()):
            if owner is None or any(owner is hooked for hooked, _, _ in self._before):
                continue
            for name in _UPDATES:
                if hasattr(owner, name):
                    self._put(owner, name, _after(begin_update, getattr(owner, name)))

    def after_clearing(self, cleared: Callable[[], None]) -> None:
        """Has a function called after a step has set the gradients to zeros.

        Args:
            cleared: what to call.
        """
        network = self.model.network
        method = network.clear_gradients

        @functools.wraps(method)
        def both(*arguments: Any, **keywords: Any) -> None:
            method(*arguments, **keywords)
            cleared()

        self._put(network, "clear_gradients", both)

    def release(self) -> None:
        """Takes all hooks away; may be called twice."""
        for owner, name, before in reversed(self._before):
            if before is _NOTHING:
                vars(owner).pop(name, None)
            else:
                vars(owner)[name] = before
        self._before = []
        self._list.__dict__.pop("_call", None)
        self._fit = None

    def _put(self, owner: Any, name: str, hook: Any) -> None:
        """Hooks an object; what the script itself had put there comes back at the release."""
        self._before.append((owner, name, vars(owner).get(name, _NOTHING)))
        vars(owner)[name] = hook

    @staticmethod
    def joined(callback_list: Any) -> bool:
        """Whether a run listens to this list already."""
        return "_call" in vars(callback_list)

    @staticmethod
    def listener_of(model: Any) -> Optional[FitListener]:
        """Returns the run whose hook a model carries: one that runs, or one that an interrupt
        between two hooks ended without its knowing."""
        return getattr(vars(model).get("_run_one_epoch"), "listener", None)

    def is_running(self) -> bool:
        """Whether this fit is still on the stack of some thread."""
        if self._fit is None:
            return False
        for top in sys._current_frames().values():
            frame: Optional[types.FrameType] = top
            while frame is not None:
                if frame is self._fit:
                    return True
                frame = frame.f_back
        return False

    def dispatch(self, name: str, arguments: Iterable[Any]) -> None:
        """Sends an event to all callbacks, as hapi does."""
        self._dispatch(name, *arguments)

    @property
    def callbacks(self) -> List[Any]:
        """All callbacks of this fit, in their order."""
        return list(self._list.callbacks)

    @property
    def logs(self) -> Dict[str, Any]:
        """The dict that `_run_one_epoch` fills. It is the default value of one of its arguments,
        so train, eval and every other Model of the process share it."""
        logs: Dict[str, Any] = type(self.model)._run_one_epoch.__defaults__[0]
        return logs

    @property
    def accumulate(self) -> int:
        """How many batches are accumulated for an update."""
        return int(self.model._accumulate)

    @property
    def amp_level(self) -> str:
        """O0, O1 or O2."""
        return str(self.model._adapter._amp_level)

    @property
    def metrics(self) -> List[Any]:
        """The metrics given to prepare()."""
        return list(self.model._metrics)

    @property
    def loss(self) -> Any:
        """The loss given to prepare()."""
        return self.model._loss

    @property
    def eval_loader(self) -> Any:
        """The evaluation's loader; None where fit has no evaluation."""
        return self.model._test_dataloader

    @property
    def optimizer(self) -> Any:
        """The optimizer given to prepare()."""
        return self.model._optimizer

    def iterations_left(self) -> Optional[int]:
        """How many iterations of `num_iters` are left; None where fit has no num_iters."""
        if self.num_iters is None:
            return None
        return int(getattr(self.model, "num_iters", 0) or 0)

    def set_iterations_left(self, left: int) -> None:
        """Sets what `iterations_left` returns. With none left, hapi has deleted the attribute and
        set stop_training."""
        if left > 0:
            self.model.num_iters = left
        else:
            self.model.__dict__.pop("num_iters", None)
            self.model.stop_training = True

    def scaler(self) -> Any:
        """Returns the GradScaler, None while there is none."""
        return getattr(self.model, "_scaler", None)

    def create_scaler(self) -> Any:
        """Creates the GradScaler as hapi's first batch does; None with AMP off."""
        if self.amp_level == "O0":
            return None
        configs = self.model._adapter._amp_configs
        self.model._scaler = require_paddle().amp.GradScaler(**configs)
        return self.model._scaler


def find_callback_list(callback: Any) -> Any:
    """Finds hapi's list of callbacks from inside one callback's on_train_begin.

    Args:
        callback: the one that is being called.

    Returns:
        The `CallbackList` whose dispatch is running.

    Raises:
        ConfigError: it is not one of fit's own callbacks.
    """
    kind = require_paddle().hapi.callbacks.CallbackList
    frame: Optional[types.FrameType] = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, kind) and any(item is callback for item in owner.callbacks):
            return owner
        frame = frame.f_back
    raise ConfigError(
        f"{type(callback).__name__} was not called by paddle.Model.fit. Give it to fit itself: "
        "model.fit(..., callbacks=[...]), not to another callback."
    )


def _frame_of_fit(model: Any) -> Optional[types.FrameType]:
    code = inspect.unwrap(type(model).fit).__code__
    frame: Optional[types.FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


def _after(first: Callable[[], None], method: Any) -> Any:
    @functools.wraps(method)
    def both(*arguments: Any, **keywords: Any) -> Any:
        first()
        return method(*arguments, **keywords)

    return both


def _counting_from(method: Any, start: int) -> Any:
    """Rebinds `_run_one_epoch` so that its `enumerate` starts at the resumed step."""
    function = method.__func__
    names = {**function.__globals__, "enumerate": lambda items: enumerate(items, start)}
    rebound = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    rebound.__kwdefaults__ = function.__kwdefaults__
    return types.MethodType(rebound, method.__self__)


def _check_hapi(model: Any, callback_list: Any, adapter: Any) -> None:
    run = getattr(model, "_run_one_epoch", None)
    problems = []
    if not inspect.isfunction(run) or list(inspect.signature(run).parameters) != _RUN_ARGUMENTS:
        problems.append("Model._run_one_epoch has other arguments")
    else:
        if not isinstance((run.__defaults__ or (None,))[0], dict):
            problems.append("Model._run_one_epoch has no shared dict of logs")
        if _RUN_USES - set(run.__code__.co_names):
            problems.append("Model._run_one_epoch iterates in another way")
        if sum(i.argval == "enumerate" for i in dis.get_instructions(run)) != 1:
            problems.append("Model._run_one_epoch does not count its steps with one enumerate")
    if _FIT_USES - set(inspect.unwrap(model.fit).__code__.co_names):
        problems.append("Model.fit is put together in another way")
    if _BATCH_USES - set(inspect.unwrap(adapter.train_batch).__code__.co_names):
        problems.append("a step updates in another way")
    if list(inspect.signature(callback_list._call).parameters) != ["self", "name", "args"]:
        problems.append("CallbackList._call has other arguments")
    if problems:
        raise ConfigError(
            f"paddle_resume does not know the Model.fit of Paddle {require_paddle().__version__}: "
            f"{'; '.join(problems)}. Going on could train wrongly. Use Paddle 2.6 or 3.3, or a "
            "newer paddle_resume; or take paddle_resume's callbacks out of the list."
        )
