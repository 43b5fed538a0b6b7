import os
import signal
import sys

import distributed
import numpy as np
import pytest

import lrbi
from lrbi import CompressConfig, InputError, LrbiError, MissingToolError, compress
from lrbi.workers import dask_cluster, process_pool

CONFIG = CompressConfig(sparsity=0.8, rank=3, tile=(16, 10))


@pytest.fixture(scope="module")
def cluster():
    """A real Dask cluster: a scheduler and two worker processes on this machine."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    ) as local:
        yield local.scheduler_address


def test_dask_gives_the_same_bytes(cluster, weights, command, tmp_path):
    np.save(tmp_path / "w.npy", weights)
    words = ["compress", "w.npy", "-s", 0.8, "-k", 3, "--tile", "16x10"]
    assert command(*words, "-o", "alone.lrbi").code == 0
    outcome = command(*words, "--dask", cluster, "-o", "dask.lrbi")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "dask.lrbi").read_bytes() == (tmp_path / "alone.lrbi").read_bytes()


def _pid_after_a_while():
    import os
    import time

    time.sleep(0.3)
    return os.getpid()


def test_dask_uses_its_workers(cluster):
    import os

    with dask_cluster(cluster) as (executor, in_flight):
        assert in_flight == 4
        futures = [executor.submit(_pid_after_a_while) for _ in range(4)]
        processes = {future.result() for future in futures}
    assert os.getpid() not in processes
    assert len(processes) == 2


def test_workers_of_another_version_are_refused(cluster, monkeypatch):
    monkeypatch.setattr(lrbi, "__version__", "99.0")
    message = r"^Worker tcp://.* must have lrbi 99.0 and NumPy .*, not lrbi "
    with pytest.raises(InputError, match=message), dask_cluster(cluster):
        pass


def test_unreachable_cluster(monkeypatch):
    monkeypatch.setattr("lrbi.workers._CONNECT_SECONDS", 0.3)
    message = "^Dask cluster 'tcp://127.0.0.1:9' must be reachable, but is not$"
    with pytest.raises(InputError, match=message), dask_cluster("tcp://127.0.0.1:9"):
        pass


def test_missing_dask_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingToolError, match=r"pip install 'lrbi\[dask\]'"):
        with dask_cluster("tcp://127.0.0.1:9"):
            pass


def test_workers_leave_interrupts_to_their_parent():
    """From before their first import on: the signal is blocked, then ignored."""
    with process_pool(2) as (pool, _):
        blocked = pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result()
        assert signal.SIGINT in blocked
        assert pool.submit(signal.getsignal, signal.SIGINT).result() is signal.SIG_IGN


def test_worker_that_dies_is_a_message(weights):
    with pytest.raises(LrbiError, match="^A worker process died, probably for want of memory"):
        with process_pool(2) as (pool, _):
            pool.submit(os._exit, 9).result()


def test_pool_gives_the_same_layer(weights):
    with process_pool(2) as (pool, in_flight):
        assert in_flight == 4
        assert compress(weights, CONFIG, executor=pool) == compress(weights, CONFIG)
