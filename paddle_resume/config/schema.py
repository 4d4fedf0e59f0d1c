"""The keys of a config: their types, defaults and allowed values.

Every default is that of the callback's argument, and each `description` says what is allowed. The
contradictions are found by the same pure policies that the callbacks make.
"""

from __future__ import annotations

import math
import os
import re
from typing import Annotated, Any, Callable, List, Literal, Mapping, Optional, Type, Union

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from paddle_resume.best import BestPolicy
from paddle_resume.checkpoint.lineage import FORMS, parse_resume_from
from paddle_resume.checkpoint.signing import check_name
from paddle_resume.errors import ConfigError
from paddle_resume.stops import EmergencyPolicy

__all__ = ["REFUSED", "SECTIONS", "Best", "Emergency", "Resume", "Settings"]

REFUSED = "refused"
"""The type of an error that says everything itself."""

# PyYAML's own loader gives 1e-4 as a text, so it arrives as one in a dict.
_EXPONENT = re.compile(r"[-+]?[0-9]+\.?[0-9]*[eE][-+]?[0-9]+")


def _number(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """A number as it was given: 30 stays 30."""
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = float(value)
    if not math.isfinite(handler(value)):
        raise PydanticCustomError("finite", "not finite")
    return value


def _path(value: Any) -> Any:
    """A path as text; nobody else expands `~` in a file."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    return os.path.expanduser(path) if isinstance(path, str) else path


def _folder(value: Any) -> Any:
    """What `save_dir` allows."""
    path = _path(value)
    if path == "" or (isinstance(path, str) and "\0" in path):
        raise PydanticCustomError("folder", "not a path")
    return path


def _start(value: Any) -> Any:
    """What `resume_from` allows."""
    value = _path(value)
    _ask(parse_resume_from, value)
    return value


def _variable(value: Any) -> Any:
    """What `sign_key` allows; whether the variable is set matters where the training runs."""
    _ask(check_name, value)
    return value


def _list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _section(value: Any) -> Any:
    """A section; None where it is turned off."""
    if value is False:
        return None
    if isinstance(value, Mapping):
        return value
    raise PydanticCustomError("section", "not a section")


def _resume_section(value: Any) -> Any:
    if value is False:
        raise PydanticCustomError(
            REFUSED,
            "resume=False: it cannot be turned off: without it each start would train from nothing "
            "and move older checkpoints aside. Where that is wanted, write resume: "
            "{resume_from: never}.",
        )
    return _section(value)


def _ask(policy: Callable[..., Any], *arguments: Any) -> None:
    """Lets a policy judge."""
    try:
        policy(*arguments)
    except ConfigError as error:
        raise PydanticCustomError(REFUSED, "{reason}", {"reason": str(error)}) from error


Count = Annotated[int, Field(ge=1)]
Folder = Annotated[str, BeforeValidator(_folder)]
From0 = Annotated[float, Field(ge=0), WrapValidator(_number)]
Above0 = Annotated[float, Field(gt=0), WrapValidator(_number)]


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Best(_Keys):
    """The arguments of `BestSaver`."""

    monitor: str = Field(
        default="loss", min_length=1, description="the name of a metric, such as acc"
    )
    mode: Literal["auto", "min", "max"] = Field(default="auto", description="auto, min or max")
    min_delta: From0 = Field(default=0.0, description="a number from 0")
    keep_best_max: Count = Field(default=1, description="a whole number from 1")

    @model_validator(mode="after")
    def _consistent(self) -> "Best":
        _ask(BestPolicy, self.monitor, self.mode, self.min_delta, self.keep_best_max)
        return self


class Emergency(_Keys):
    """The arguments of `EmergencySaver`."""

    signals: Annotated[Union[str, List[str]], BeforeValidator(_list)] = Field(
        default=["SIGTERM", "SIGINT", "SIGHUP"],
        description="names of signals, such as [SIGTERM, SIGINT]",
    )
    on_exception: bool = Field(default=True, description="true or false")
    grace_seconds: Above0 = Field(default=25.0, description="a number above 0")
    save_signal: Optional[str] = Field(
        default=None, description="the name of a signal, such as SIGUSR1, or null for none"
    )
    stop_after_minutes: Optional[Above0] = Field(
        default=None, description="a number above 0, or null for never"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Emergency":
        _ask(
            EmergencyPolicy.of,
            self.signals,
            self.on_exception,
            self.grace_seconds,
            self.save_signal,
            self.stop_after_minutes,
        )
        return self


class Resume(_Keys):
    """The arguments of `AutoResume`."""

    resume_from: Annotated[str, BeforeValidator(_start)] = Field(default="auto", description=FORMS)
    lr_policy: Literal["restore", "override"] = Field(
        default="restore", description="restore or override"
    )
    partial: bool = Field(default=False, description="true or false")
    verify: Literal["full", "size", "none"] = Field(
        default="full", description="full, size or none"
    )


class Settings(_Keys):
    """A whole config: the arguments of `PeriodicSaver`, and a section for each other callback.

    What all of them share, `save_dir` and `sign_key`, stands beside those of `PeriodicSaver`.
    """

    save_dir: Folder = Field(description="the path of a folder")
    snapshot_epoch: Optional[Count] = Field(
        default=1, description="a whole number from 1, or null for off"
    )
    snapshot_step: Optional[Count] = Field(
        default=None, description="a whole number from 1, or null for off"
    )
    snapshot_minutes: Optional[Above0] = Field(
        default=30, description="a number above 0, or null for off"
    )
    keep_checkpoint_max: Optional[Count] = Field(
        default=3, description="a whole number from 1, or null to keep all"
    )
    keep_every_epoch: Optional[Count] = Field(
        default=None, description="a whole number from 1, or null for no milestones"
    )
    async_save: bool = Field(default=True, description="true or false")
    sign_key: Annotated[Optional[str], BeforeValidator(_variable)] = Field(
        default=None,
        description="the name of an environment variable that holds a key, or null for none",
    )
    best: Annotated[Optional[Best], BeforeValidator(_section)] = Field(
        default=Best(),
        description="a section such as {monitor: acc}, {} for the defaults, or false for off",
    )
    emergency: Annotated[Optional[Emergency], BeforeValidator(_section)] = Field(
        default=Emergency(),
        description="a section such as {grace_seconds: 25}, {} for the defaults, or false for off",
    )
    resume: Annotated[Resume, BeforeValidator(_resume_section)] = Field(
        default=Resume(),
        description="a section such as {resume_from: auto}, or {} for the defaults",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Settings":
        # PeriodicSaver says the same, but only where Paddle is there.
        every, saved = self.keep_every_epoch, self.snapshot_epoch
        if every is not None and (saved is None or every % saved):
            raise PydanticCustomError(
                REFUSED,
                "keep_every_epoch={every} with snapshot_epoch={saved}: the epochs to keep are not "
                "all saved. Make keep_every_epoch a multiple of snapshot_epoch.",
                {"every": every, "saved": saved},
            )
        return self


SECTIONS: Mapping[str, Type[BaseModel]] = {"best": Best, "emergency": Emergency, "resume": Resume}
"""The model of each section."""
