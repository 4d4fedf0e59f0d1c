"""The optimizer's slots and master weights.

Paddle names a slot after its parameter's generated name (`linear_0.w_0_moment1_0`), which shifts
when another model is built first, and which two models built in another order swap without a
word. So each slot is mapped to (accumulator, structured parameter name), and the file keeps
Paddle's own key, which `Model.load` needs.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Set, Tuple

import numpy as np

from paddle_resume.codec import host_array
from paddle_resume.errors import ConfigError
from paddle_resume.runtime import require_paddle
from paddle_resume.state.lr import pdopt_entry
from paddle_resume.types import PARTLY, Captured

__all__ = ["OptimizerSlots", "named_parameters"]

_MASTER = "master_weights"


def named_parameters(layers: Mapping[str, Any]) -> Dict[str, Any]:
    """Names every parameter of several networks.

    Args:
        layers: part name to Layer; the part `model` gives its names as they are.

    Returns:
        Structured name (`linear.weight`, `loss/centers`) to parameter, tied ones once.
    """
    named: Dict[str, Any] = {}
    seen = set()
    for part, layer in layers.items():
        for name, parameter in layer.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                named[name if part == "model" else f"{part}/{name}"] = parameter
    return named


class OptimizerSlots:
    """Component: accumulators and master weights of one optimizer.

    Args:
        optimizer: a `paddle.optimizer.Optimizer`.
        parameters: structured name to parameter, of all networks it may train.
        file: the `.pdopt` file's name without the ending.
        partial: restore what fits where the checkpoint is of another model.

    Raises:
        ConfigError: the optimizer keeps state where it cannot be found, or trains a parameter
            that is in no network.
    """

    name = "optimizer"
    moves = PARTLY

    def __init__(
        self,
        optimizer: Any,
        parameters: Mapping[str, Any],
        file: str = "model",
        partial: bool = False,
    ) -> None:
        self._optimizer = optimizer
        self._structured = {parameter.name: name for name, parameter in parameters.items()}
        self._known = {id(parameter) for parameter in parameters.values()}
        self._file = file
        self._partial = partial
        self._refuse_the_unknown()

    def capture(self) -> Captured:
        """Returns each slot under Paddle's key, and the map from key to what it is."""
        return self.complete(self.mark(), at_once=True)

    def mark(self) -> Captured:
        """Returns what a `.pdopt` file holds of the schedule; see `PartlyMoving.mark`."""
        return Captured(values={"pdopt": pdopt_entry(self._optimizer)})

    def complete(self, marked: Captured, at_once: bool) -> Captured:
        """Adds the slots, which only the update changes; see `PartlyMoving.complete`."""
        tensors: Dict[str, np.ndarray] = {}
        slots: Dict[str, List[str]] = {}
        for accumulator, parameter, tensor in self._slots():
            tensors[tensor.name] = host_array(tensor)
            slots[tensor.name] = [accumulator, self._structured[parameter]]
        for parameter, tensor in self._master_weights().items():
            key = f"{_MASTER}/{parameter}"
            tensors[key] = host_array(tensor)
            slots[key] = [_MASTER, self._structured[parameter]]
        values = {
            "kind": "optimizer",
            "file": self._file,
            "class": type(self._optimizer).__name__,
            "slots": slots,
            **marked.values,
        }
        return Captured(tensors, values)

    def digest(self, marked: Captured) -> str:
        """Nobody swaps an optimizer's slots; see `PartlyMoving.digest`."""
        return ""

    def restore(self, captured: Captured) -> List[str]:
        """Creates the slots as the optimizer itself would and sets them; see `Component.restore`.

        Where something does not fit and `partial` is off, nothing is touched.
        """
        found, expected = captured.values["class"], type(self._optimizer).__name__
        if found != expected:
            return [
                f"the checkpoint was written with the optimizer {found} and this run uses "
                f"{expected}: their slots are not the same thing"
            ]
        wanted = {
            tuple(slot): captured.tensors[key] for key, slot in captured.values["slots"].items()
        }
        own = {self._structured[p.name]: p for p in self._trained() if p.name in self._structured}
        problems = sorted(
            {
                f"the optimizer's slots of {name} are in the checkpoint, but this optimizer does "
                "not train that parameter"
                for _, name in wanted
                if name not in own
            }
        )
        if problems and not self._partial:
            return problems
        wanted = {slot: array for slot, array in wanted.items() if slot[1] in own}
        self._create({name for _, name in wanted})
        return problems + self._set(wanted)

    def _set(self, wanted: Dict[Tuple[str, ...], np.ndarray]) -> List[str]:
        rest = dict(wanted)
        stale, problems = [], []
        for parameter, tensor in self._master_weights().items():
            array = rest.pop((_MASTER, self._structured[parameter]), None)
            if array is not None:
                tensor.set_value(array)
        for accumulator, parameter, tensor in self._slots():
            slot = (accumulator, self._structured[parameter])
            array = rest.pop(slot, None)
            if array is None:
                stale.append(parameter)
            elif list(array.shape) != list(tensor.shape):
                problems.append(
                    f"optimizer: {accumulator} of {slot[1]} is {list(array.shape)} in the "
                    f"checkpoint and {list(tensor.shape)} here"
                )
            else:
                tensor.set_value(array)
        self._forget(stale)
        missing = [f"the optimizer made no slot {slot[0]} for {slot[1]}" for slot in rest]
        return problems + missing

    def _create(self, names: "set[str]") -> None:
        """Makes the optimizer create its accumulators now instead of at its first update."""
        paddle = require_paddle()
        optimizer = self._optimizer
        optimizer._accumulators_holder = {}
        if not names:
            return
        if optimizer.helper is None:
            optimizer.helper = paddle.base.layer_helper.LayerHelper(type(optimizer).__name__)
        block = paddle.base.framework.default_main_program().global_block()

        def chosen(parameters: List[Any]) -> List[Any]:
            return [p for p in parameters if self._structured.get(p.name) in names]

        with paddle.no_grad():
            groups = optimizer._param_groups
            if not isinstance(groups[0], dict):
                optimizer._create_accumulators(block, chosen(groups))
                return
            for group in groups:
                parameters = chosen(group["params"])
                if parameters:
                    optimizer._create_accumulators(block, {**group, "params": parameters})

    def _forget(self, parameters: List[str]) -> None:
        """Drops slots of a parameter that had none at the checkpoint (frozen until later)."""
        optimizer = self._optimizer
        spelled = "_already_create_accumulator"
        if not hasattr(optimizer, spelled):
            spelled = "_already_create_accumulater"  # in Paddle 2.6
        created: Set[str] = getattr(optimizer, spelled, set())
        masters = {tensor.name: name for name, tensor in self._master_weights().items()}
        for parameter in parameters:
            created.discard(parameter)
            for slots in optimizer._accumulators.values():
                for key in [key for key in slots if masters.get(key, key) == parameter]:
                    del slots[key]
            self._master_weights().pop(parameter, None)

    def _slots(self) -> Iterator[Tuple[str, str, Any]]:
        """Yields (accumulator, parameter's generated name, tensor) of each slot."""
        optimizer = self._optimizer
        masters = {tensor.name: name for name, tensor in self._master_weights().items()}
        prefix = f"{optimizer._name}_" if optimizer._name is not None else ""
        for accumulator, slots in optimizer._accumulators.items():
            base = accumulator[len(prefix) :] if accumulator.startswith(prefix) else accumulator
            for key, tensor in slots.items():
                yield base, masters.get(key, key), tensor

    def _master_weights(self) -> Dict[str, Any]:
        return getattr(self._optimizer, "_master_weights", None) or {}

    def _trained(self) -> List[Any]:
        groups = self._optimizer._param_groups
        if groups and isinstance(groups[0], dict):
            return [parameter for group in groups for parameter in group["params"]]
        return list(groups)

    def _refuse_the_unknown(self) -> None:
        optimizer = self._optimizer
        base = require_paddle().optimizer.Optimizer
        for attribute, value in vars(optimizer).items():
            if isinstance(value, base):
                raise ConfigError(
                    f"the optimizer {type(optimizer).__name__} wraps another one "
                    f"({attribute}: {type(value).__name__}), whose state paddle_resume cannot "
                    "restore. Train with the inner optimizer."
                )
        if type(optimizer).__name__ == "LBFGS":
            raise ConfigError(
                "the optimizer LBFGS keeps its history outside Paddle's slots, and paddle_resume "
                "cannot restore it. Use another optimizer."
            )
        unknown = [p.name for p in self._trained() if id(p) not in self._known]
        if unknown:
            raise ConfigError(
                f"the optimizer trains {len(unknown)} parameter(s) that are neither in the "
                f"network nor in the loss, the first is {unknown[0]}: they could not be restored. "
                "Make them part of the network or of the loss Layer."
            )
