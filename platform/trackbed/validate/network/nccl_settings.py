"""What NCCL would do with its variables: which interface it takes, and which names it does not know.

Its rules as of 2.29, from its documentation: the environment wins over the user's file, and that over /etc/nccl.conf;
without NCCL_SOCKET_IFNAME it looks for ib*, then for anything but docker*, lo* and virbr*, then for those.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

IFNAME = "NCCL_SOCKET_IFNAME"
DEFAULTS = ("ib", "^docker,lo,virbr", "docker", "lo", "virbr")
# Names that NCCL 2.18 to 2.29, torch and images use, without their prefix.
NAMES = """
ALGO ALLGATHERV_ENABLE ALLOC_P2P_NET_LL_BUFFERS ASYNC_ERROR_HANDLING BLOCKING_WAIT BUFFSIZE CGA_CLUSTER_SIZE
CHECKS_DISABLE CHECK_MODE CHECK_POINTERS CHUNK_SIZE COLLNET_ENABLE COLLNET_NODE_THRESHOLD COMM_BLOCKING COMM_ID
COMM_SHRINK_SHARE_RESOURCES COMM_SPLIT_SHARE_RESOURCES CONF_FILE CONNECT_ROUND_MAX_PEERS CREATE_THREAD_CONTEXT
CROSS_NIC CTA_POLICY CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG DEBUG_FILE DEBUG_SUBSYS DEBUG_TIMESTAMP_FORMAT
DEBUG_TIMESTAMP_LEVELS DESYNC_DEBUG DISABLE_MEM_MANAGER DMABUF_ENABLE ENABLE_VERSION_CHECK ENV_PLUGIN
GDAKI_USE_RELIABLE_DB GDRCOPY_ENABLE GDRCOPY_FIFO_ENABLE GDRCOPY_FLUSH_ENABLE GDRCOPY_SYNC_ENABLE GDR_FLUSH_DISABLE
GIN_COUNTER_POOL_SIZE GIN_ENABLE GIN_ERROR_QUERY_SEC GIN_EXCLUSIVE_CONTEXTS GIN_GDAKI_NIC_HANDLER GIN_GDAKI_QP_DEPTH
GIN_IB_ALLGATHER_TAG GIN_IB_ALLTOALL_TAG GIN_NCONNECTIONS GIN_NCONTEXTS GIN_PLUGIN GIN_PROXY_QUEUE_SIZE
GIN_SIGNAL_POOL_SIZE GIN_TYPE GRAPH_DUMP_FILE GRAPH_DUMP_FILE_RANK GRAPH_FILE GRAPH_HELPER_DISABLE
GRAPH_MIXING_SUPPORT GRAPH_REGISTER GROUP_CUDA_STREAM HOSTID IB_ADAPTIVE_ROUTING IB_ADDR_FAMILY IB_ADDR_RANGE
IB_AR_THRESHOLD IB_CUDA_SUPPORT IB_DATA_DIRECT IB_DEVICE_PCI_ORDER IB_DISABLE IB_ECE_ENABLE IB_FIFO_TC IB_GDR_LEVEL
IB_GID_INDEX IB_HCA IB_MERGE_NICS IB_MERGE_VFS IB_MQP_RETRY_ALL IB_MQP_RETRY_CNT IB_MQP_RETRY_SLEEP_MSEC
IB_PCI_RELAXED_ORDERING IB_PKEY IB_PREPOST_RECEIVE_WORK_REQUESTS IB_QPS_PER_CONNECTION
IB_RECEIVER_SIDE_MATCHING_SCHEME IB_RESILIENCY_PORT_FAILOVER IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS
IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY IB_RETRY_CNT IB_RETURN_ASYNC_EVENTS IB_ROCE_VERSION_NUM
IB_ROUTABLE_FLID_GID_INDEX IB_SL IB_SPLIT_DATA_ON_QPS IB_TC IB_TIMEOUT IB_USE_INLINE IB_WARN_RAIL_LOCAL
IGNORE_CPU_AFFINITY IGNORE_DISABLED_P2P L1_SHARED_MEMORY_CARVEOUT LAUNCH_MODE LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL
LEGACY_CUDA_REGISTER LL128_BUFFSIZE LL128_C2C LL128_NTHREADS LL_BUFFSIZE LOCAL_REGISTER LSA_TEAM_SIZE MAX_CTAS
MAX_NCHANNELS MAX_NRINGS MAX_P2P_NCHANNELS MEM_SYNC_DOMAIN MIN_CTAS MIN_NCHANNELS MIN_NRINGS MIN_P2P_NCHANNELS
MNNVL_CLIQUE_ID MNNVL_ENABLE MNNVL_RAIL_PER_HOST MNNVL_SCATTER_NETS_ENABLE MNNVL_UUID MULTI_SEGMENT_REGISTER
NCHANNELS_PER_NET_PEER NET NETDEVS_POLICY NET_DISABLE_INTRA NET_FORCE_FLUSH NET_FORCE_MERGE NET_GDR_C2C NET_GDR_LEVEL
NET_GDR_READ NET_MERGE_LEVEL NET_OPTIONAL_RECV_COMPLETION NET_OVERHEAD NET_PLUGIN NET_SHARED_BUFFERS NET_SHARED_COMMS
NO_CACHE NSOCKS_PERTHREAD NTHREADS NUM_RMA_CTX NVB_DISABLE NVB_PRECONNECT NVLINK_UTIL_CENTRIC_SCHED_ENABLE
NVLSTREE_MAX_CHUNKSIZE NVLS_CHUNKSIZE NVLS_ENABLE NVLS_NCHANNELS NVTX_DISABLE OOB_NET_ENABLE OOB_NET_IFNAME
P2P_DIRECT_DISABLE P2P_DISABLE P2P_EPOCH_ENABLE P2P_LEVEL P2P_LL_THRESHOLD P2P_NET_CHUNKSIZE P2P_NVL_CHUNKSIZE
P2P_PCI_CHUNKSIZE P2P_PER_CHANNEL_NET_BW P2P_PXN_LEVEL P2P_READ_ENABLE P2P_SCHEDULE_GROUP_SIZE P2P_USE_CUDA_MEMCPY
PAT_ENABLE PROFILER_PLUGIN PROGRESS_APPENDOP_FREQ PROTO PROXY_APPEND_BATCH_SIZE PROXY_CPUSET PROXY_DUMP_SIGNAL PXN_C2C
PXN_DISABLE RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR REPORT_CONNECT_PROGRESS RMA_PROXY_DUMP_SIGNAL RMA_PROXY_QUEUE_SIZE
RUNTIME_CONNECT SET_CPU_STACK_SIZE SET_STACK_SIZE SET_THREAD_NAME SHM_DISABLE SHM_LOCALITY SHM_MEMCPY_MODE
SHM_USE_CUDA_MEMCPY SINGLE_PROC_MEM_REG_ENABLE SINGLE_RING_THRESHOLD SOCKET_FAMILY SOCKET_IFNAME SOCKET_INLINE
SOCKET_MIN_TASKSIZE SOCKET_NTHREADS SOCKET_POLL_TIMEOUT_MSEC SOCKET_RCVBUF SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC
SOCKET_SNDBUF SYM_CE_THRESHOLD SYM_CTAS SYM_GIN_KERNELS_ENABLE SYM_KERNEL SYM_NOWIN_ENABLE THREAD_THRESHOLDS
TOPO_DUMP_FILE TOPO_DUMP_FILE_RANK TOPO_FILE TREE_THRESHOLD TUNER_CONFIG_PATH TUNER_PLUGIN UID_STAGGER_RATE
UID_STAGGER_THRESHOLD UNPACK_DOUBLE_NCHANNELS VERSION WARN_ENABLE_DEBUG_INFO WIN_ENABLE WIN_STRIDE WORK_ARGS_BYTES
WORK_FIFO_BYTES WORK_FIFO_DEPTH
"""
KNOWN = frozenset(f"NCCL_{name}" for name in re.findall(r"\w+", NAMES))
# What people set to find a fault, and forget: the value that hurts, and what it costs.
LEFT_OVER = {
    "NCCL_P2P_DISABLE": ("1", "GPUs talk through the host's memory"),
    "NCCL_SHM_DISABLE": ("1", "ranks of a node talk through the network"),
    "NCCL_IB_DISABLE": ("1", "nodes talk through TCP"),
    "NCCL_DEBUG": ("TRACE", "every call is logged"),
    "NCCL_CHECK_POINTERS": ("1", "every pointer is looked at"),
    "NCCL_LAUNCH_MODE": ("GROUP", "launches wait for each other"),
}


def settings(environment: Mapping[str, str], files: Sequence[Path]) -> dict[str, tuple[str, str]]:
    """Each NCCL_ variable's value and where it comes from; the environment first, then the files in their order."""
    found = {name: (value, "the environment") for name, value in environment.items() if name.startswith("NCCL_")}
    for file in files:
        for name, value in _assigned(file):
            found.setdefault(name, (value, str(file)))
    return found


def choose(wanted: str, interfaces: Sequence[str]) -> str:
    """The interface that carries NCCL's sockets, of those that have an address and run; empty when none fits.

    `wanted` is NCCL_SOCKET_IFNAME: prefixes with commas between, after `=` whole names, after `^` those to leave out.
    """
    # NCCL takes a value of one character for none.
    for pattern in (wanted,) if len(wanted) > 1 else DEFAULTS:
        for name in interfaces:
            if _fits(pattern, name):
                return name
    return ""


def misspelt(names: Sequence[str]) -> dict[str, str]:
    """Names NCCL does not know, with the one that was probably meant. A plug-in's own name is like no other."""
    unknown = (name for name in names if name.startswith("NCCL_") and name not in KNOWN)
    close = {name: difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.88) for name in unknown}
    return {name: found[0] for name, found in close.items() if found}


def _fits(pattern: str, name: str) -> bool:
    leave_out = pattern.startswith("^")
    pattern = pattern.removeprefix("^")
    whole = pattern.startswith("=")
    words = [word.split(":")[0] for word in pattern.removeprefix("=").split(",") if word]
    found = any(name == word if whole else name.startswith(word) for word in words)
    return found != leave_out


def _assigned(file: Path) -> list[tuple[str, str]]:
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return [(name, value) for name, sign, value in pairs if sign and name.startswith("NCCL_")]
