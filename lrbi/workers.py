"""Processes and clusters to run tiles on."""

import logging
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from lrbi.errors import InputError, LrbiError, MissingToolError

_CONNECT_SECONDS = 5


@contextmanager
def process_pool(jobs: int) -> Iterator[tuple[Executor, int]]:
    """A pool of ``jobs`` fresh processes, which leave Ctrl-C to their parent.

    With it comes how many tiles to have out at a time.
    """
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_follow_parent, initargs=(os.getpid(),)
    )
    try:
        # A child inherits the blocked signal, so it is deaf from the start. As many calls as
        # there are workers start them now.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(jobs):
                pool.submit(worker_versions)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        yield pool, 2 * jobs
    except KeyboardInterrupt:
        for process in list(pool._processes.values()):  # their tiles may take long
            process.terminate()
        raise
    except BrokenProcessPool as error:
        raise LrbiError(
            "A worker process died, probably for want of memory (use fewer --jobs or smaller tiles)"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def dask_cluster(address: str) -> Iterator[tuple[Executor, int]]:
    """The workers of a Dask cluster, and how many tiles to have out at a time.

    The workers need the same versions, or the result would depend on who did what.
    """
    try:
        import dask
        import distributed
    except ImportError as error:
        raise MissingToolError(
            "A Dask cluster needs the distributed library (pip install 'lrbi[dask]')"
        ) from error
    try:
        logging.disable(logging.CRITICAL)  # of its attempts; the outcome is told below
        with dask.config.set({"distributed.comm.timeouts.connect": _CONNECT_SECONDS}):
            client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"Dask cluster {address!r} must be reachable, but is not") from error
    finally:
        logging.disable(logging.NOTSET)
    try:
        threads = sum(client.nthreads().values())
        if not threads:
            raise InputError(f"Dask cluster {address!r} must have a worker, but has none")
        _check_versions(client)
        warnings.filterwarnings("ignore", "Sending large graph")  # a tile is what it has to send
        yield client.get_executor(pure=False), 2 * threads
    except distributed.KilledWorker as error:
        raise LrbiError(
            "Workers of the Dask cluster died, probably for want of memory (use smaller tiles)"
        ) from error
    except distributed.CancelledError as error:
        raise LrbiError(f"Dask cluster {address!r} has gone away") from error
    finally:
        client.close()


def _follow_parent(parent: int) -> None:
    """Leave interrupts to the parent, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def worker_versions() -> str:
    """The versions where this runs of what decides over the bits; loads what a tile needs."""
    import numpy as np

    import lrbi.factorize

    return f"lrbi {lrbi.__version__} and NumPy {np.__version__}"


def _check_versions(client: "distributed.Client") -> None:  # type: ignore[name-defined] # noqa: F821
    try:
        versions = client.run(worker_versions)
    except ImportError as error:
        raise InputError("Workers of a Dask cluster must have lrbi installed") from error
    for worker, version in versions.items():
        if version != worker_versions():
            raise InputError(f"Worker {worker} must have {worker_versions()}, not {version}")
