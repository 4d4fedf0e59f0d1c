"""A run that saves as fast as it can: `python -m crash.soaking SAVE_DIR SAMPLES STEPS`."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import psutil

from paddle_resume import saver

from .run import Run, assert_exact, versions

EVERY = 50
SAID_EVERY = 10


def main(save_dir: Path, samples: Path, steps: int) -> None:
    """Goes on from where the folder is, to the end.

    Args:
        save_dir: of the run.
        samples: the file to append to, every 50 saves, what the process holds.
        steps: after which it is finished.
    """
    saver.versions = versions
    logging.getLogger("paddle_resume").setLevel(logging.ERROR)
    run = Run(save_dir, best=True, in_background=True)
    if run.state is not None:
        assert_exact(run.state)
    run.begin()
    process, start = psutil.Process(), run.step
    print(start, flush=True)
    while run.step < steps:
        saved = run.save(acc=(run.step * 37 % 101) / 101 + run.step / 1000)
        assert saved == run.step, f"step {run.step} could not be saved"
        if run.step % SAID_EVERY == 0:
            print(run.step, flush=True)
        if (run.step - start) % EVERY == 0:
            found = {
                "pid": os.getpid(),
                "saves": run.step - start,
                "descriptors": process.num_fds(),
                "threads": process.num_threads(),
                "memory": process.memory_full_info().uss,
            }
            with open(samples, "a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
    run.session.finish(run.step, "epochs")
    run.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
