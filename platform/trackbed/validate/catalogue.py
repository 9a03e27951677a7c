"""Every check there is: each family's own table. To add a check: a measure, a judge, a row in its family, a test."""

from __future__ import annotations

from trackbed.validate.data import checkpoints, dali, dali_order, datasets, leftovers, loader
from trackbed.validate.deep import checks as deep
from trackbed.validate.hardware import cuda, fabric, gdrcopy, gpu, nccl_runs, rdma, tensorrt
from trackbed.validate.job import checks as job
from trackbed.validate.machine import container, filesystems, host, kernel, limits, seccomp, storage, writable
from trackbed.validate.network import comm, interfaces, mpi, mpi_start, ports
from trackbed.validate.site import expect
from trackbed.validate.stack import deepspeed, deepspeed_ops, monitor, packages, versions

# Deadlines are for a cold disk and a busy machine; warm, what runs at a node's start takes seconds.
# First: a node that is late keeps the others waiting.
FAMILIES = (
    job,
    host,
    container,
    seccomp,
    writable,
    packages,
    limits,
    kernel,
    interfaces,
    ports,
    mpi,
    mpi_start,
    versions,
    dali,
    comm,
    monitor,
    filesystems,
    storage,
    leftovers,
    checkpoints,
    loader,
    datasets,
    dali_order,
    deepspeed,
    deepspeed_ops,
    expect,
    cuda,
    gpu,
    fabric,
    rdma,
    nccl_runs,
    gdrcopy,
    tensorrt,
    # Last: it measures what only an idle machine can show.
    deep,
)
CHECKS = tuple(check for family in FAMILIES for check in family.CHECKS)
