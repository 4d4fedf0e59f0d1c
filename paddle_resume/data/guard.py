"""What paddle_resume uses of Paddle's DataLoader beyond its public face."""

from __future__ import annotations

from typing import Any

from paddle_resume.errors import ConfigError
from paddle_resume.runtime import require_paddle

__all__ = ["check_loader"]

_LOADER = (
    "batch_sampler",
    "collate_fn",
    "worker_init_fn",
    "prefetch_factor",
    "places",
    "dataset_kind",
    "auto_collate_batch",
    "_persistent_workers",
    "_iterator",
)
_POOL = {
    "_init_workers": {"_workers_idx_cycle"},
    "_reset": {"_index_sampler"},
    "_try_shutdown_all": {"_shutdown"},
}


def check_loader(loader: Any) -> None:
    """Refuses a DataLoader that is put together in another way than those that are known.

    Args:
        loader: a `paddle.io.DataLoader`.

    Raises:
        ConfigError: going on could read the data in a wrong order.
    """
    problems = [f"DataLoader has no {name}" for name in _LOADER if not hasattr(loader, name)]
    iterators = require_paddle().io.dataloader.dataloader_iter
    thread = getattr(iterators, "_DataLoaderIterSingleProcess", None)
    if not hasattr(thread, "_exit_thread_expectedly"):
        problems.append("its loading thread cannot be ended")
    pool = getattr(iterators, "_DataLoaderIterMultiProcess", None)
    for name, uses in _POOL.items():
        method = getattr(pool, name, None)
        if method is None or uses - set(method.__code__.co_names):
            problems.append(f"its workers' {name} is another")
    if problems:
        raise ConfigError(
            f"paddle_resume does not know the DataLoader of Paddle "
            f"{require_paddle().__version__}: {'; '.join(problems)}. Going on could read the data "
            "in a wrong order. Use Paddle 2.6 or 3.3, or a newer paddle_resume."
        )
