"""The parts of a fit's state, from what fit and prepare() were given."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional

from paddle_resume.best import BestScores
from paddle_resume.callbacks.base import ResumeCallback
from paddle_resume.callbacks.fingerprint import Fingerprint
from paddle_resume.callbacks.fit_session import FitHooks
from paddle_resume.callbacks.loop_state import LoopState
from paddle_resume.data.evaluation import EvaluationPool
from paddle_resume.data.position import DataPosition
from paddle_resume.errors import ConfigError, ResumeError
from paddle_resume.resumer import ResumePolicy
from paddle_resume.runtime import require_paddle
from paddle_resume.state.amp import Scaler
from paddle_resume.state.extra import Extra
from paddle_resume.state.finite import Health
from paddle_resume.state.gradients import Gradients
from paddle_resume.state.listeners import Listeners
from paddle_resume.state.lr import LearningRate
from paddle_resume.state.metrics import Metrics
from paddle_resume.state.model import Buffers, Network
from paddle_resume.state.optimizer import OptimizerSlots, named_parameters
from paddle_resume.state.rng import RandomStreams
from paddle_resume.types import Captures, Component

__all__ = ["OPTIONAL", "FitParts"]

OPTIONAL = (BestScores.name,)
"""Parts that a checkpoint need not have: whoever adds BestSaver later starts to count then."""

# Slots of a parameter's size that an optimizer makes at its first update.
_SLOTS = {"SGD": 0, "Momentum": 1, "Adagrad": 1, "RMSProp": 3}
_SLOTS_OF_OTHERS = 2
_BYTES_BESIDE_TENSORS = 40_000  # state.json of a small model


class FitParts:
    """Every component of one fit.

    Args:
        hooks: into the fit.
        policy: how to restore; None where nobody asked to resume.
        loop: the loop's own component.
        extra: the user's objects.
        scores: the best so far; None where nobody asked for the best.
        is_over: see `Listeners`.

    Attributes:
        gradients: one of the parts, which is told when they are cleared.

    Raises:
        ConfigError: something could not be saved or restored.
    """

    def __init__(
        self,
        hooks: FitHooks,
        policy: Optional[ResumePolicy],
        loop: LoopState,
        extra: Mapping[str, Any],
        scores: Optional[BestScores],
        is_over: Callable[[], bool],
    ) -> None:
        self._hooks = hooks
        self._layers = _layers(hooks)
        partial = policy is not None and policy.partial
        lr_policy = policy.lr_policy if policy is not None else "restore"
        parameters = named_parameters(self._layers)
        others = [item for item in hooks.callbacks if not isinstance(item, ResumeCallback)]
        own = Extra(extra)
        listeners = Listeners(others, is_over)
        for part in (own, listeners):
            _dry_run(part)  # what cannot be saved is an error now, not after hours
        self.gradients = Gradients(parameters, [*named_parameters({"model": hooks.model.network})])
        self._restored: List[Component] = [
            *(Network(layer, name, partial) for name, layer in self._layers.items()),
            Buffers(self._layers),
            OptimizerSlots(hooks.optimizer, parameters, partial=partial),
            LearningRate(hooks.optimizer, lr_policy),
            Scaler(hooks.scaler, hooks.create_scaler),
            self.gradients,
            Metrics(hooks.metrics),
            EvaluationPool(lambda: hooks.eval_loader),
            loop,
            own,
            *([] if scores is None else [scores]),
            listeners,
        ]
        self._streams = RandomStreams()
        self._others: List[Captures] = [self._streams]

    def add_data(self, data: DataPosition, fingerprint: Fingerprint) -> None:
        """Adds what is known only when the first epoch comes with its loader."""
        self._others += [data, fingerprint]

    @property
    def all(self) -> List[Captures]:
        """Every part."""
        return [*self._restored, *self._others]

    @property
    def at_the_end(self) -> List[Captures]:
        """The parts that a finished run gives back to the script."""
        return [*self._restored, self._streams]

    @property
    def restored(self) -> List[Component]:
        """The parts to restore at once, in their order: listeners last."""
        return self._restored

    @property
    def restored_by_others(self) -> List[str]:
        """The names of the rest: a loader sets position and streams when it is ready."""
        return [part.name for part in self._others] + [Health.name]

    def expected_bytes(self) -> int:
        """Estimates a checkpoint before the optimizer has made its slots."""
        slots = _SLOTS.get(type(self._hooks.optimizer).__name__, _SLOTS_OF_OTHERS)
        total = _BYTES_BESIDE_TENSORS
        for layer in self._layers.values():
            for tensor in layer.state_dict().values():
                size = int(tensor.size) * tensor.element_size()
                total += size * (1 if tensor.stop_gradient else 1 + slots)
        return total


def _dry_run(part: Captures) -> None:
    try:
        part.capture()
    except ResumeError:
        raise
    except Exception as error:
        raise ConfigError(
            f"a state_dict() of the {part.name}s failed, so nothing could be saved: "
            f"{type(error).__name__}: {error}"
        ) from error


def _layers(hooks: FitHooks) -> Dict[str, Any]:
    layers = {"model": hooks.model.network}
    loss = hooks.loss
    if isinstance(loss, require_paddle().nn.Layer) and (loss.parameters() or loss.buffers()):
        layers["loss"] = loss
    return layers
