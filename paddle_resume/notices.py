"""What a run says and notes at its start and at its end."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
from typing import Optional

from paddle_resume.checkpoint.store import Store
from paddle_resume.errors import ConfigError
from paddle_resume.observe import events
from paddle_resume.observe.log import human_size, log
from paddle_resume.save_dir import VARIABLE
from paddle_resume.saver import SavePolicy
from paddle_resume.state.finite import Health
from paddle_resume.types import ResumePlan, TrainingState, values_of

__all__ = ["note_start", "refuse_shared", "say_finished", "say_sizes", "say_start"]


def refuse_shared(log_of_events: events.EventLog, given: str) -> None:
    """Refuses a folder that this process has used under another name.

    Args:
        log_of_events: of the folder.
        given: save_dir as the script gave it.

    Raises:
        ConfigError: the variable that replaces save_dir has put two of them into one folder.
    """
    for event in events.read(log_of_events.path):
        if event["event"] != "start" or not isinstance(event.get("given"), str):
            continue
        same = (event.get("pid"), event.get("host")) == (os.getpid(), socket.gethostname())
        if same and event["given"] != given and os.environ.get(VARIABLE):
            raise ConfigError(
                f"{VARIABLE}={os.environ[VARIABLE]} puts save_dir={event['given']!r} and "
                f"save_dir={given!r} of this process into one folder, where the second would go on "
                "with the first one's run. Let it end with a slash: then it is a prefix, and each "
                "keeps a folder of its own."
            )


def note_start(log_of_events: events.EventLog, plan: ResumePlan, step: int, given: str) -> None:
    """Notes in events.jsonl how a run starts.

    Args:
        log_of_events: where to.
        plan: of the start.
        step: where it begins.
        given: save_dir as the script gave it.
    """
    log_of_events.append(
        "start",
        action=plan.action,
        run_id=plan.run_id,
        step=step,
        pid=os.getpid(),
        host=socket.gethostname(),
        given=given,
        origin=dataclasses.asdict(plan.origin) if plan.origin else None,
    )
    for path, why in plan.rejected:
        log_of_events.append("fallback", rejected=path.name, why=why)
    if plan.source is not None:
        log_of_events.append("resume", step=step, path=str(plan.source), run_id=plan.run_id)


def say_start(store: Store, plan: ResumePlan, state: Optional[TrainingState]) -> None:
    """Says what a run starts from, and what is odd about it.

    Args:
        store: its folder.
        plan: of the start.
        state: as loaded; None for a fresh start.
    """
    if state is None:
        log.info("a fresh start in %s (run %s)", store.save_dir, plan.run_id)
        return
    broken = Health.read(values_of(state))
    if broken:
        log.warning(
            "%s holds NaN or infinity in %d weight(s), the first is %s. "
            'resume_from="finite" starts from the newest checkpoint without any.',
            plan.source,
            len(broken),
            broken[0],
        )
    for reason in state.inexact:
        log.warning("the resume is not exact: %s", reason)


def say_sizes(
    store: Store, plan: ResumePlan, saving: Optional[SavePolicy], expected_bytes: int
) -> None:
    """Says how large a checkpoint is, how many are kept, and how much room there is.

    Args:
        store: the folder.
        plan: of the start.
        saving: None where nobody asked to save.
        expected_bytes: about how large a checkpoint will be, where there is none to tell.
    """
    if saving is None:
        log.warning("no PeriodicSaver is among the callbacks: this run saves nothing")
        return
    size = expected_bytes
    if plan.source is not None:
        size = sum(size for size, _ in store.read_manifest(plan.source).files.values())
    free = shutil.disk_usage(store.save_dir).free
    kept = " and ".join(str(policy) for policy in saving.retention)
    if saving.best is not None:
        kept += f" and the best {saving.best.keep} by {saving.best.monitor}"
    log.info(
        "a checkpoint takes about %s; kept: %s; %s free in %s",
        human_size(size),
        kept,
        human_size(free),
        store.save_dir,
    )


def say_finished(step: int, why: str, epochs: int) -> None:
    """Says that there is nothing left to train, and how to train longer.

    Args:
        step: of the final state.
        why: `"epochs"`, `"num_iters"` or `"stopped"`.
        epochs: of this run.
    """
    reason, remedy = {
        "num_iters": ("all of num_iters are done", "raise num_iters"),
        "stopped": (
            "it was stopped early",
            "raise epochs and relax what stopped it (EarlyStopping's patience)",
        ),
    }.get(why, (f"all of epochs={epochs} are done", "raise epochs"))
    log.info(
        "this run is finished (step %d, %s): its final state is loaded and fit returns. To "
        'train longer, %s (a schedule made for the old length needs lr_policy="override"); '
        "for a new run, or another fold or stage, give another save_dir.",
        step,
        reason,
        remedy,
    )
