"""Processes and clusters to run tiles on."""

import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

import lrbi
from lrbi.errors import InputError, LrbiError, MissingToolError

_CONNECT_SECONDS = 10


@contextmanager
def process_pool(jobs: int) -> Iterator[tuple[Executor, int]]:
    """A pool of ``jobs`` fresh processes, which leave Ctrl-C to their parent.

    With it comes how many tiles to have out at a time.
    """
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        # Children inherit the blocked signal; submitting as many calls as there are workers
        # starts them all while it is blocked.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(jobs):
                pool.submit(worker_version)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        yield pool, 2 * jobs
    except BrokenProcessPool as error:
        raise LrbiError(
            "A worker process died, probably for want of memory (use fewer --jobs or smaller tiles)"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def dask_cluster(address: str) -> Iterator[tuple[Executor, int]]:
    """The workers of a Dask cluster, and how many tiles to have out at a time.

    The workers need the same version of lrbi, or the result would depend on who did what.
    """
    try:
        import distributed
    except ImportError as error:
        raise MissingToolError(
            "A Dask cluster needs the distributed library (pip install 'lrbi[dask]')"
        ) from error
    try:
        client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"Dask cluster {address!r} must be reachable, but is not") from error
    try:
        threads = sum(client.nthreads().values())
        if not threads:
            raise InputError(f"Dask cluster {address!r} must have a worker, but has none")
        _check_versions(client)
        yield client.get_executor(pure=False), 2 * threads
    except (distributed.KilledWorker, distributed.CancelledError) as error:
        raise LrbiError(
            "Workers of the Dask cluster died, probably for want of memory (use smaller tiles)"
        ) from error
    finally:
        client.close()


def worker_version() -> str:
    """The version of lrbi where this runs; loads what a tile needs."""
    import lrbi.factorize

    return lrbi.__version__


def _check_versions(client: "distributed.Client") -> None:  # type: ignore[name-defined] # noqa: F821
    try:
        versions = client.run(worker_version)
    except ImportError as error:
        raise InputError("Workers of a Dask cluster must have lrbi installed") from error
    for worker, version in versions.items():
        if version != lrbi.__version__:
            raise InputError(f"Worker {worker} must have lrbi {lrbi.__version__}, not {version}")
