"""The metric that is monitored: its name, what its name says, and its value in a loop's logs."""

from __future__ import annotations

import difflib
import numbers
import re
from typing import Any, List, Mapping, Optional, Sequence

from paddle_resume.errors import ConfigError

__all__ = ["check_monitor", "contradicts", "direction_of", "value_of"]

_MORE_IS_BETTER = frozenset(
    "acc accuracy auc f1 precision recall map iou miou dice hmean kappa bleu rouge psnr ssim "
    "top1 top5".split()
)
_LESS_IS_BETTER = frozenset("loss error err eer ppl perplexity mse mae rmse cer wer".split())

_WORD = re.compile(r"[^\W_]+")
_JOINT = re.compile(
    r"(?<=[a-z])(?=[A-Z])"  # val|Acc
    r"|(?<=[A-Z])(?=[A-Z][a-z])"  # MSE|Loss
    r"|(?<=[0-9])(?=[^0-9])|(?<=[^0-9])(?=[0-9])"  # top|1|Acc
)
_PREFIX = re.compile(r"(eval|val|valid|validation|dev|test|train|training)[\W_]+", re.IGNORECASE)


def direction_of(monitor: str) -> str:
    """Reads from a metric's name whether less or more of it is better.

    Args:
        monitor: the name, as acc_top1, eval/accuracy, bbox_mAP or valLoss.

    Returns:
        `"min"` or `"max"`.

    Raises:
        ConfigError: the name says neither, or both.

    Example:
        >>> direction_of("bbox_mAP50"), direction_of("eval_loss")
        ('max', 'min')
    """
    tokens = _tokens(monitor)
    more = [token for token in tokens if token in _MORE_IS_BETTER]
    less = [token for token in tokens if token in _LESS_IS_BETTER]
    if more and less:
        why = f"the name says that more is better ({more[0]}) and that less is ({less[0]})"
    elif more or less:
        return "max" if more else "min"
    else:
        why = "the name does not say whether more or less of it is better"
    raise ConfigError(f'monitor={monitor!r}, mode="auto": {why}. Give mode="min" or mode="max"')


def contradicts(monitor: str, mode: str) -> bool:
    """Whether a metric's name says the opposite of what was asked for.

    Args:
        monitor: the name.
        mode: `"min"`, `"max"` or `"auto"`.

    Example:
        >>> contradicts("acc", "min"), contradicts("acc", "auto"), contradicts("speed", "min")
        (True, False, False)
    """
    try:
        return mode != "auto" and direction_of(monitor) != mode
    except ConfigError:
        return False  # it says nothing


def _tokens(name: str) -> List[str]:
    """The parts of a name, in lower case, and what neighbours within a word form together.

    mAP has the joint m|AP, and F1 the joint F|1; only together they are a token.
    """
    tokens = []
    for word in _WORD.findall(name):
        pieces = _JOINT.split(word)
        for first in range(len(pieces)):
            for last in range(first, len(pieces)):
                tokens.append("".join(pieces[first : last + 1]).lower())
    return tokens


def check_monitor(monitor: str, available: Sequence[str]) -> None:
    """Refuses a metric that the training does not have, before its first step.

    Args:
        monitor: the name to look for.
        available: the names that there are: `params["metrics"]` of `paddle.Model`.

    Raises:
        ConfigError: it is not among them; the message lists them and names the nearest.

    Example:
        >>> check_monitor("acc_top1", ["loss", "acc_top1", "acc_top5"])
    """
    if monitor in available:
        return
    if not available:
        raise ConfigError(
            f"monitor={monitor!r}: this training has no loss and no metric at all. Give a loss or "
            "metrics to Model.prepare()"
        )
    there = ", ".join(repr(name) for name in dict.fromkeys(available))
    raise ConfigError(
        f"monitor={monitor!r}: the training has no metric of this name, only {there}."
        f"{_hint(monitor, available)}"
    )


def _hint(monitor: str, available: Sequence[str]) -> str:
    bare = _PREFIX.sub("", monitor, count=1) if _PREFIX.match(monitor) else monitor
    in_lower_case = {str(name).lower(): name for name in reversed(available)}
    near = difflib.get_close_matches(bare.lower(), in_lower_case, n=1, cutoff=0.5)
    if not near:
        return " Monitor one of these"
    name = in_lower_case[near[0]]
    if bare == monitor:
        return f" Did you mean monitor={name!r}?"
    return f" The evaluation's values have the same names, without a prefix: monitor={name!r}"


def value_of(logs: Mapping[str, Any], monitor: str) -> Optional[float]:
    """Finds a metric's value in a loop's logs.

    Args:
        logs: name to a number, an array, a Paddle tensor, or a list of these.
        monitor: the name.

    Returns:
        The value; of several the first, as in Paddle's own EarlyStopping. None where the name is
        missing or what it holds is no number.

    Example:
        >>> value_of({"loss": [0.5], "acc": 0.75}, "loss")
        0.5
    """
    value: Any = logs.get(monitor)
    while isinstance(value, (list, tuple)):
        value = value[0] if value else None
    if hasattr(value, "item") and hasattr(value, "size"):
        # Not numpy(): it gives a bfloat16's bits as uint16.
        value = value.item(0) if value.size else None
    if not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
