"""Processes and clusters to run tiles on."""

import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from lrbi.errors import LrbiError


@contextmanager
def process_pool(jobs: int) -> Iterator[Executor]:
    """A pool of ``jobs`` fresh processes, which leave Ctrl-C to their parent."""
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        # Children inherit the blocked signal; submitting as many calls as there are workers
        # starts them all while it is blocked.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(jobs):
                pool.submit(_import_factorize)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        yield pool
    except BrokenProcessPool as error:
        raise LrbiError(
            "A worker process died, probably for want of memory (use fewer --jobs or smaller tiles)"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _import_factorize() -> None:
    import lrbi.factorize  # noqa: F401  so that the first tile does not wait for it
