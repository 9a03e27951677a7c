# What this image is, and whether this container can do its work: at most ten lines, for people, on stderr.
# It judges what costs no time to read, and never stops the start: `trackbed validate` is for both.
#
#   TRACKBED_BANNER=always|never         also without a terminal | not even on one
#   TRACKBED_DEV, TRACKBED_PROC          stand in for /dev and /proc

banner() {
    failed='' warned=0 parts=''
    red='' yellow='' green='' plain=''
    if [ -t 2 ] && [ -z "${NO_COLOR:-}" ]; then
        red=$(printf '\033[31m') yellow=$(printf '\033[33m') green=$(printf '\033[32m') plain=$(printf '\033[0m')
    fi
    dev=${TRACKBED_DEV:-/dev} proc=${TRACKBED_PROC:-/proc}
    variant=${TRACKBED_VARIANT:-} user=$(id -u):$(id -g)
    revision=${TRACKBED_REVISION:+, revision $TRACKBED_REVISION}
    say "Trackbed ${TRACKBED_RELEASE:-of no declared release}${variant:+, $variant}$revision"
    say_versions
    judge_gpu
    judge_driver
    judge_shared_memory
    judge_storage
    say_sum
}

# One line, whatever a variable or a folder's name holds.
say() {
    case $1 in
    *[[:cntrl:]]*) set -- "$(printf '%s' "$1" | tr '[:cntrl:]' ' ')" "${2:-}" ;;
    esac
    printf '%s%s\n' "${2:-}" "$1"
}

say_versions() {
    part "PyTorch" "${PYTORCH_VERSION:-}"
    part "DeepSpeed" "${DEEPSPEED_VERSION:-}"
    part "DALI" "${DALI_VERSION:-}"
    part "Open MPI" "${OPENMPI_VERSION:-}"
    part "TensorBoard" "${TENSORBOARD_VERSION:-}"
    end_parts
    [ "$variant" = gpu ] || return 0
    part "CUDA" "${CUDA_VERSION:-}"
    part "cuDNN" "${CUDNN_VERSION:-}"
    part "NCCL" "${NCCL_VERSION:-}"
    part "TensorRT" "${TRT_VERSION:-}"
    end_parts
}

part() {
    if [ -n "$2" ]; then parts="${parts:+$parts, }$1 $2"; fi
}

end_parts() {
    if [ -n "$parts" ]; then say "$parts"; fi
    parts=''
}

# pass|warn|fail, the subject in a word, what was found, what to do.
verdict() {
    case $1 in
    pass) colour=$green ;;
    warn) colour=$yellow warned=$((warned + 1)) ;;
    *) colour=$red failed="${failed:+$failed, }$2" ;;
    esac
    say "$3${4:+  ->  $4}" "$colour$1$plain  "
}

say_sum() {
    if [ -n "$failed" ]; then
        sum="not ready: $failed"
    else
        case $warned in
        0) sum="ready" ;;
        1) sum="ready, 1 warning" ;;
        *) sum="ready, $warned warnings" ;;
        esac
    fi
    say "verdict: $sum  (\`trackbed validate\` tells more)"
}

judge_gpu() {
    case $variant in
    cpu) verdict pass GPU "CPU only, as this image is meant" ;;
    gpu) judge_devices ;;
    *) verdict fail variant "TRACKBED_VARIANT is '$variant', neither cpu nor gpu" "set it, or build the image again" ;;
    esac
}

# WSL and Tegra show one device for all GPUs.
other_device() {
    [ -e "$dev/dxg" ] || [ -e "$dev/nvgpu" ]
}

judge_devices() {
    gpus=0 closed=''
    for node in "$dev"/nvidia[0-9]*; do
        [ -e "$node" ] || continue
        gpus=$((gpus + 1))
        if ! { [ -r "$node" ] && [ -w "$node" ]; }; then closed=$node; fi
    done
    if [ ! -e "$dev/nvidiactl" ] && other_device; then
        verdict pass GPU "an NVIDIA device"
    elif [ ! -e "$dev/nvidiactl" ]; then
        verdict fail GPU "no NVIDIA device in this container" "start it with --gpus all"
    elif [ "$gpus" -eq 0 ]; then
        verdict fail GPU "the NVIDIA driver, but no GPU in this container" "start it with --gpus all"
    elif [ -n "$closed" ]; then
        verdict fail GPU "$closed is not for $user to use" "start it with --group-add and the number of its group"
    else
        verdict pass GPU "NVIDIA GPUs: $gpus"
    fi
}

judge_driver() {
    [ "$variant" = gpu ] || return 0
    file=$proc/driver/nvidia/version minimum=${CUDA_DRIVER_MINIMUM:-}
    if [ ! -e "$file" ] && [ ! -e "$dev/nvidiactl" ]; then
        # WSL and Tegra don't keep the file: not knowing is no pass, but no fault of the machine either.
        if other_device; then
            verdict warn driver "the driver's version cannot be read here" \
                "see that nvidia-smi shows ${minimum:-a recent one} or newer"
        fi
        return 0
    fi
    found=$(driver_version "$file")
    if ! is_version "$found"; then
        verdict fail driver "the driver's version cannot be read from $file" "see whether nvidia-smi works on the host"
    elif ! is_version "$minimum"; then
        verdict fail driver "driver $found, but CUDA_DRIVER_MINIMUM is '$minimum', not a version" \
            "set it, or build the image again"
    elif is_older "$found" "$minimum"; then
        verdict fail driver "driver $found is older than $minimum" "update the host's driver, or use an older release"
    else
        verdict pass driver "driver $found, and $minimum is enough"
    fi
}

# NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.135  Fri Jan 10 20:00:00 UTC 2025
# NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22-I3-B17-02-5)
driver_version() {
    { [ -f "$1" ] && [ -r "$1" ]; } || return 0
    line=$(grep -a -m 1 '^NVRM version:' "$1") || return 0
    # Split into words, which are not patterns of file names.
    set -f
    for word in $line; do
        case $word in
        *.*) if is_version "$word"; then
            printf '%s' "$word"
            return 0
        fi ;;
        esac
    done
}

# Numbers with dots between them, each small enough for the shell to compare.
is_version() {
    case $1 in
    '' | *[!0-9.]* | .* | *. | *..* | *[0-9][0-9][0-9][0-9][0-9][0-9]*) return 1 ;;
    esac
}

# Whether the first of two versions is older, number by number; a number that is missing is 0.
is_older() {
    left=$1. right=$2.
    while [ -n "$left$right" ]; do
        left_number=${left%%.*} right_number=${right%%.*}
        [ "${left_number:-0}" -ge "${right_number:-0}" ] || return 0
        [ "${left_number:-0}" -eq "${right_number:-0}" ] || return 1
        left=${left#*.} right=${right#*.}
    done
    return 1
}

judge_shared_memory() {
    remedy="start it with --shm-size=1g or --ipc=host"
    if [ ! -d "$dev/shm" ]; then
        verdict fail "/dev/shm" "there is no $dev/shm" "$remedy"
        return 0
    fi
    kilobytes=$(LC_ALL=C df -k --output=size "$dev/shm" 2>/dev/null | sed -n '2s/^ *\([0-9]\{1,15\}\) *$/\1/p')
    if [ -z "$kilobytes" ]; then
        verdict fail "/dev/shm" "the size of $dev/shm cannot be read" "$remedy"
    elif [ "$kilobytes" -lt 1048576 ]; then
        verdict warn "/dev/shm" "$((kilobytes / 1024)) MB in /dev/shm is little for ranks and data workers" "$remedy"
    else
        verdict pass "/dev/shm" "$((kilobytes / 1048576)) GB in /dev/shm"
    fi
}

# A read-only root is as it should be; the volumes and the folder for temporary files on it are what must be writable.
judge_storage() {
    cache=${TRACKBED_CACHE:-${HOME:-}/.cache/trackbed}
    before=$failed
    judge_folders cache "--volume cache:$cache" "$cache/models" "$cache/data"
    judge_folders runs "--volume runs:${TRACKBED_RUNS:-runs}" "${TRACKBED_RUNS:-runs}"
    judge_folders tmp "--tmpfs ${TMPDIR:-/tmp}" "${TMPDIR:-/tmp}"
    if [ "$failed" = "$before" ]; then verdict pass storage "$user may write cache, runs and temporary files"; fi
}

# The subject, how to get a file system for it, and its folders; at most one verdict.
judge_folders() {
    subject=$1 mount=$2
    shift 2
    for folder; do
        place=$(existing "$folder")
        if [ -d "$place" ] && [ -w "$place" ] && [ -x "$place" ]; then continue; fi
        if [ ! -d "$place" ]; then
            verdict fail "$subject" "$place is not a folder" "name another path for it"
        elif is_read_only "$place"; then
            verdict fail "$subject" "$folder is on a read-only file system" "start it with $mount"
        else
            verdict fail "$subject" "$folder is not for $user to write" \
                "give it to group 0 (chgrp 0, chmod g+rwx) and start with --user $(id -u):0"
        fi
        return 0
    done
}

# Asked only of a folder that may not be written: `touch` is refused, and says why.
is_read_only() {
    case $(LC_ALL=C touch -c "$1" 2>&1) in
    *Read-only*) ;;
    *) return 1 ;;
    esac
}

# The folder, or the nearest one above it that is there, in which it would be made.
existing() {
    path=$1
    while [ "$path" != . ] && [ ! -e "$path" ] && [ ! -L "$path" ]; do
        case $path in
        */*) path=${path%/*} ;;
        *) path=. ;;
        esac
        [ -n "$path" ] || path=/
    done
    printf '%s' "$path"
}

case ${TRACKBED_BANNER:-} in
always) ;;
never) return 0 ;;
*) if [ ! -t 1 ] && [ ! -t 2 ]; then return 0; fi ;;
esac
# In a sub-shell of its own: a helper variable may have the name of one that the program was given.
(banner) >&2 || :
