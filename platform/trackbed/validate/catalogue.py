"""Every check there is, one row each. To add one: a measure, a judge, a row here, a test."""

from __future__ import annotations

from trackbed.validate import Check, comm, data, host, monitor, stack, storage

# Deadlines are for a cold disk and a busy machine; warm, the whole table takes seconds.
CHECKS = (
    Check(
        id="host.shared-memory",
        title="shared memory",
        measure=host.measure_shared_memory,
        judge=host.judge_shared_memory,
        deadline=10,
        child="host",
    ),
    Check(
        id="host.cpus",
        title="CPUs this process may use",
        measure=host.measure_cpus,
        judge=host.judge_cpus,
        deadline=10,
        child="host",
    ),
    Check(
        id="host.memory-limit",
        title="memory this process may use",
        measure=host.measure_memory,
        judge=host.judge_memory,
        deadline=10,
        child="host",
    ),
    Check(
        id="host.open-files",
        title="open files",
        measure=host.measure_open_files,
        judge=host.judge_open_files,
        deadline=10,
        child="host",
    ),
    Check(
        id="host.locked-memory",
        title="locked memory",
        measure=host.measure_locked_memory,
        judge=host.judge_locked_memory,
        deadline=10,
        child="host",
    ),
    Check(
        id="stack.drift",
        title="versions against the release",
        measure=stack.measure_drift,
        judge=stack.judge_drift,
        deadline=150,
        child="stack",
    ),
    Check(
        id="stack.imports",
        title="the stack in one interpreter, in two orders",
        measure=stack.measure_imports,
        judge=stack.judge_imports,
        deadline=150,
        child="stack",
    ),
    Check(
        id="data.dali-decode",
        title="DALI against PIL and NumPy",
        measure=data.measure_dali,
        judge=data.judge_dali,
        deadline=60,
    ),
    Check(
        id="comm.gloo-all-reduce",
        title="two gloo ranks",
        measure=comm.measure_gloo,
        judge=comm.judge_gloo,
        deadline=90,
        child="torch",
    ),
    Check(
        id="comm.mpi-all-reduce",
        title="two MPI ranks",
        measure=comm.measure_mpi,
        judge=comm.judge_mpi,
        deadline=60,
    ),
    Check(
        id="monitor.tensorboard-roundtrip",
        title="TensorBoard reads what was written",
        measure=monitor.measure_roundtrip,
        judge=monitor.judge_roundtrip,
        deadline=60,
        child="torch",
    ),
    Check(
        id="storage.commit",
        title="a checkpoint's steps in the folder for runs",
        measure=storage.measure_commit,
        judge=storage.judge_commit,
        deadline=60,
    ),
)
