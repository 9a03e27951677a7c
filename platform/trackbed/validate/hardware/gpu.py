"""gpu.*: health of each GPU, judged from what NVML says of it (nvml.snapshot, one reading for all of them)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trackbed.validate import MIB, Outcome, Status, skip, unreadable
from trackbed.validate.hardware import nvml
from trackbed.validate.hardware.gpu_events import CHECKS as EVENTS
from trackbed.validate.hardware.gpu_rules import DRAIN, Finding, each, measure, no_snapshot
from trackbed.validate.hardware.shared import cheap, count, expected, not_here

SLOWDOWN, THERMAL, POWER_BRAKE, SOFTWARE_THERMAL, POWER_CAP = 8, 64, 128, 32, 4  # bits of NVML's clock event reasons
EXCLUSIVE, PROHIBITED = 3, 2
ACTIONS = {
    1: "reset the GPU: nvidia-smi --gpu-reset -i N, when nothing runs on it",
    2: "reboot the node",
    3: "let its peer-to-peer jobs end, then reset it",
    4: "drain the node, then reset the GPU",
    5: "recover the IMEX domain: restart nvidia-imex on all its nodes",
    6: "reset the PCIe bus: reboot the node when that is not possible",
    7: "reboot the system",
}


def judge_answers(value: Any) -> Outcome:
    """A driver that hangs takes every program with it that asks."""
    if outcome := not_here("NVML's answer", value):
        return outcome
    wanted = f"NVML answers within {nvml.SECONDS:g} s, for every GPU"
    remedy = f"{DRAIN}reboot it; look for Xid 79 or 119 in the kernel log"
    if "late" in value:
        observed = f"NVML did not answer within {value['late']} s: the driver hangs"
        return Outcome(status="fail", observed=observed, expected=wanted, remedy=remedy)
    if outcome := no_snapshot("NVML's answer", value):
        return outcome
    try:
        seconds = count(value.get("seconds"))
        lost = [gpu["index"] for gpu in value["gpus"] if gpu["lost"]]
    except (KeyError, ValueError):
        return unreadable("NVML's answer", {name: value.get(name) for name in ("seconds", "gpus")})
    if lost:
        observed = f"GPU {', '.join(map(str, lost))} is lost: it has fallen off the bus"
        return Outcome(status="fail", observed=observed, expected=wanted, remedy=remedy)
    observed = f"{len(value['gpus'])} GPUs of driver {value.get('driver')} in {seconds:.2g} s"
    return Outcome(status="pass", observed=observed, expected=wanted)


def judge_ecc(value: Any) -> Outcome:
    """Uncorrected errors since the driver was loaded; corrected ones in the numbers at which sites drain a node."""

    def find(ecc: Any) -> Finding:
        bad, corrected, sram = (count(ecc[name]) for name in ("uncorrected", "corrected", "corrected_sram"))
        if bad > 0:
            return "fail", f"{bad:g} uncorrected ECC errors"
        if sram > 10_000 or corrected > 50_000_000:
            return "warn", f"{corrected:g} corrected ECC errors, {sram:g} in SRAM"
        return None

    wanted = "no uncorrected error; at most 10000 corrected in SRAM, 50 million in all"
    remedy = f"{DRAIN}nvidia-smi --gpu-reset -i N; when they come back, have the GPU replaced"
    return each(value, "ECC errors", "ecc", find, expected=wanted, remedy=remedy)


def judge_rows(value: Any) -> Outcome:
    """Memory rows that were replaced, wait to be, or cannot be any more."""

    def find(rows: Any) -> Finding:
        uncorrected, pending, failure = (count(rows[name]) for name in ("uncorrected", "pending", "failure"))
        if failure > 0:
            return "fail", "a row could not be remapped: replace the GPU"
        if uncorrected > 512:
            return "fail", f"{uncorrected:g} rows remapped for uncorrectable errors: replace the GPU"
        return ("fail", "a remapping waits for a reset") if pending > 0 else None

    wanted = "no remapping that failed or is pending, at most 512 rows for uncorrectable errors"
    remedy = f"{DRAIN}nvidia-smi --gpu-reset -i N for a pending one; a GPU with failures goes back to its vendor"
    return each(value, "remapped rows", "rows", find, expected=wanted, remedy=remedy)


def judge_clocks(value: Any) -> Outcome:
    """Why the clocks are held down now. A power cap counts only on an idle GPU: under load it is the normal limit."""
    if outcome := no_snapshot("clock limits", value):
        return outcome
    pairs = [{"index": gpu.get("index"), "both": _reasons(gpu)} for gpu in value["gpus"]]

    def find(both: Any) -> Finding:
        mask, busy = int(count(both["reasons"])), count(both["busy"])
        if mask & POWER_BRAKE:
            return "fail", "held down by the power brake"
        if mask & THERMAL:
            return "fail", "held down by heat"
        if mask & (SLOWDOWN | SOFTWARE_THERMAL):
            return "warn", "slowed down"
        return ("warn", "held by its power cap while idle") if mask & POWER_CAP and busy <= 10 else None

    wanted = "no slowdown by heat or power"
    remedy = "look at cooling (fans, air, liquid) and at the power supplies; nvidia-smi -q -d PERFORMANCE"
    return each({"gpus": pairs}, "clock limits", "both", find, expected=wanted, remedy=remedy)


def _reasons(gpu: Mapping[str, Any]) -> dict[str, Any] | None:
    known = "reasons" in gpu and gpu["reasons"] is None
    return None if known else {"reasons": gpu.get("reasons"), "busy": gpu.get("busy") or 0}


def judge_temperature(value: Any) -> Outcome:
    """Five degrees below where the hardware slows itself down."""

    def find(degrees: Any) -> Finding:
        now, slowdown = count(degrees["now"]), count(degrees["slowdown"])
        close = now >= slowdown - 5
        return ("warn", f"{now:g} C, and it slows down at {slowdown:g} C") if close else None

    remedy = "look at cooling before a long job: fans, air inlet, liquid; nvidia-smi -q -d TEMPERATURE"
    wanted = "more than 5 C below the slowdown temperature"
    return each(value, "temperatures", "temperature", find, expected=wanted, remedy=remedy)


def judge_foreign(value: Any) -> Outcome:
    """Memory that is in use before the job starts. In a container the process list is empty, so memory is the proof."""
    strict = isinstance(value, Mapping) and expected(value, "gpu") is not None

    def find(memory: Any) -> Finding:
        used, total = count(memory["used"]), count(memory["total"])
        if used > total:
            raise ValueError(memory)
        words = f"{used / MIB:.0f} MiB in use before the job"
        return ("fail" if strict else "warn", words) if used > 15 * MIB else None

    wanted = "at most 15 MiB in use on every GPU"
    remedy = "nvidia-smi on the host names the processes; end what a killed job left: kill PID (a display may stay)"
    return each(value, "memory in use", "memory", find, expected=wanted, remedy=remedy)


def judge_power(value: Any) -> Outcome:
    """A limit below the default makes one rank the slowest of all."""

    def find(power: Any) -> Finding:
        limit, default = count(power["limit"]), count(power["default"])
        return ("warn", f"limited to {limit:g} W of {default:g} W") if limit < default else None

    remedy = "nvidia-smi -i N -pl WATTS on the host, or ask why it is limited"
    return each(value, "power limits", "power", find, expected="the default power limit", remedy=remedy)


def judge_firmware(value: Any) -> Outcome:
    """One VBIOS, InfoROM and GSP firmware on all GPUs of a model: else they differ in speed and in bugs."""
    if outcome := no_snapshot("firmware", value):
        return outcome
    parts: dict[str, set[str]] = {}
    for gpu in value["gpus"]:
        for part in ("vbios", "inforom", "gsp"):
            said = gpu.get(part, 0)
            if said is not None and not isinstance(said, str):
                return unreadable("firmware", said)
            parts.setdefault(f"{part} of {gpu.get('name')}", set()).update([said] if said else [])
    if not any(parts.values()):
        return skip("no GPU here reports firmware versions")
    wanted = "one version on all GPUs of a model"
    mixed = [f"{part}: {', '.join(sorted(seen))}" for part, seen in sorted(parts.items()) if len(seen) > 1]
    if not mixed:
        return Outcome(status="pass", observed=f"{len(value['gpus'])} GPUs alike", expected=wanted)
    remedy = "flash the older ones with the vendor's tool in the next service window"
    return Outcome(status="warn", observed="; ".join(mixed), expected=wanted, remedy=remedy)


def judge_recovery(value: Any) -> Outcome:
    """What the driver itself asks for."""

    def find(action: Any) -> Finding:
        number = int(count(action))
        return ("fail", ACTIONS.get(number, f"recovery action {number}")) if number else None

    remedy = f"{DRAIN}do what is named for each GPU"
    return each(value, "recovery actions", "recovery", find, expected="none asked for", remedy=remedy)


def judge_modes(value: Any) -> Outcome:
    """Modes that an administrator set and that a job does not expect."""
    if outcome := no_snapshot("modes", value):
        return outcome
    gpus, ranks = value["gpus"], value.get("ranks")
    try:
        crowded = count(ranks) > len(gpus)
        findings = [(gpu["index"], _mode(gpu, crowded=crowded, several=len(gpus) > 1)) for gpu in gpus]
    except (KeyError, ValueError):
        return unreadable("modes", ranks)
    bad = [(index, found) for index, found in findings if found]
    wanted = "compute mode default, persistence on"
    if not bad:
        mig = sum(1 for gpu in gpus if gpu.get("mig"))
        observed = f"{len(gpus)} GPUs{f', {mig} of them split by MIG' if mig else ''}"
        return Outcome(status="pass", observed=observed, expected=wanted)
    status: Status = "fail" if any(found[0] == "fail" for _, found in bad) else "warn"
    observed = "; ".join(f"GPU {index}: {found[1]}" for index, found in bad)
    remedy = "on the host: nvidia-smi -c DEFAULT; systemctl enable --now nvidia-persistenced (or nvidia-smi -pm 1)"
    return Outcome(status=status, observed=observed, expected=wanted, remedy=remedy)


def _mode(gpu: Mapping[str, Any], *, crowded: bool, several: bool) -> Finding:
    """Persistence matters where no display keeps the driver loaded: on machines with several GPUs."""
    mode, persistence = gpu["compute_mode"], gpu["persistence"]
    if (mode is not None and count(mode) == PROHIBITED) or (mode == EXCLUSIVE and crowded):
        return (
            "fail",
            "prohibits CUDA" if mode == PROHIBITED else "takes one process, and there are more ranks than GPUs",
        )
    return ("warn", "persistence is off: the first job waits for the driver") if persistence == 0 and several else None


def _row(name: str, title: str, judge: Callable[[Any], Outcome], why: str, rule: str) -> Any:
    return cheap(id=f"gpu.{name}", title=title, measure=measure, judge=judge, why=why, rule=rule)


CHECKS = (
    _row(
        "answers", "the driver answers in time", judge_answers,
        "A driver that hangs blocks nvidia-smi, every prolog and every job in the kernel, where no signal ends them.",
        "Fails when NVML gives no answer within 10 s or says of a GPU that it is lost.",
    ),
    _row(
        "ecc", "memory errors (ECC)", judge_ecc,
        "`CUDA error: uncorrectable ECC error encountered` in the middle of a run; before, only counters rise.",
        "Fails on an uncorrected error since the driver was loaded; warns above 10000 corrected ones in SRAM or 50 "
        "million in all.",
    ),
    _row(
        "remapped-rows", "memory rows that were replaced", judge_rows,
        "A GPU with a pending or failed remapping goes on with bad memory: Xid 63 or 64, later 94 or 95.",
        "Fails on a pending or failed remapping, or more than 512 rows for uncorrectable errors.",
    ),
    _row(
        "clocks", "clocks held down", judge_clocks,
        "One GPU that slows itself down makes all ranks wait for it; no message says which.",
        "Fails on heat or power brake; warns on other slowdowns, and on a power cap while idle.",
    ),
    _row(
        "temperature", "temperature", judge_temperature,
        "A GPU that starts hot slows down under load, and with it every rank.",
        "Warns at 5 C below the slowdown temperature and above.",
    ),
    _row(
        "memory-in-use", "memory in use before the job", judge_foreign,
        "Ranks of a killed job live on and hold memory: `CUDA out of memory` on a GPU that should be empty.",
        "Above 15 MiB: fails where the site has an expectation of its GPUs, else warns (a display uses some).",
    ),
    _row(
        "power-limit", "power limit", judge_power,
        "A limit left by another experiment makes one rank slow.",
        "Warns when the limit is below the default.",
    ),
    _row(
        "firmware", "firmware alike on all GPUs", judge_firmware,
        "Replaced cards come with another VBIOS, and with other clocks and bugs.",
        "Warns when GPUs of one model have different VBIOS, InfoROM or GSP versions.",
    ),
    _row(
        "recovery-action", "what the driver asks for", judge_recovery,
        "After a fault the driver waits for a reset, and jobs fail until somebody does it.",
        "Fails when NVML reports a recovery action.",
    ),
    _row(
        "modes", "compute mode and persistence", judge_modes,
        "`CUDA error: all CUDA-capable devices are busy or unavailable` in exclusive mode; without persistence every "
        "job starts seconds later.",
        "Fails when a GPU prohibits CUDA, or takes one process and there are more ranks; warns when persistence is off "
        "on a machine with several GPUs.",
    ),
    *EVENTS,
)  # fmt: skip
