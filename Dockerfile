# Stages run from what changes least to what changes most, so that a change of code rebuilds the last three layers only.
# A second variant is a stage like `environment-cpu` and a target like `cpu`.
# trackbed:begin arguments
ARG RELEASE=26.11
ARG BASE_IMAGE=debian:bookworm-slim
# trackbed:end arguments

# What every stage stands on. There is no compiler: nothing is compiled where it runs.
FROM ${BASE_IMAGE} AS base
RUN set -eux; \
    apt-get update; \
    apt-get install -y --no-install-recommends \
        ca-certificates \
        python3 \
    ; \
    apt-get clean; \
    rm -rf /var/lib/apt/lists/*


# The installer, which no image needs to carry.
FROM base AS installer
RUN set -eux; \
    apt-get update; \
    apt-get install -y --no-install-recommends python3-venv; \
    apt-get clean; \
    rm -rf /var/lib/apt/lists/*
COPY requirements/boot.lock /build/requirements/
RUN set -eux; \
    python3 -m venv /opt/uv; \
    /opt/uv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r /build/requirements/boot.lock
COPY requirements/build.lock /build/requirements/


FROM installer AS environment-cpu
# Where the CPU build of torch comes from. An image that carries wheels says so in UV_FIND_LINKS, and they win.
ARG UV_TORCH_BACKEND=cpu
COPY requirements/cpu.lock /build/requirements/
# Compiled to bytecode here, because a read-only root never could: torch and transformers then import in 2.1 s instead
# of 4.0 s, in every rank of every start, for 270 MB.
RUN --mount=type=cache,target=/root/.cache/uv \
    set -eux; \
    if [ -n "${UV_FIND_LINKS:-}" ]; then unset UV_TORCH_BACKEND; fi; \
    export UV_LINK_MODE=copy; \
    /opt/uv/bin/uv venv --python /usr/bin/python3 /opt/venv; \
    /opt/uv/bin/uv pip sync --python /opt/venv/bin/python --compile-bytecode --require-hashes \
        --build-constraints /build/requirements/build.lock /build/requirements/cpu.lock


# Where things are, for any user id: group 0 may write what its owner may, and nothing looks a name up.
FROM base AS runtime
RUN set -eux; \
    install -d -m 2775 -o 1000 -g 0 \
        /var/lib/trackbed \
        /var/lib/trackbed/cache \
        /var/lib/trackbed/cache/data \
        /var/lib/trackbed/cache/models \
        /var/lib/trackbed/runs
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/tmp \
    LOGNAME=trackbed \
    USER=trackbed \
    PIP_NO_CACHE_DIR=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DO_NOT_TRACK=1 \
    HF_HOME=/var/lib/trackbed/cache/models/huggingface \
    HF_HUB_DISABLE_TELEMETRY=1 \
    TRACKBED_CACHE=/var/lib/trackbed/cache \
    TRACKBED_REQUIREMENTS=/opt/trackbed/requirements \
    TRACKBED_RUNS=/var/lib/trackbed/runs
WORKDIR /opt/trackbed
# Group 0 may write what this container wrote, so that another user id can carry on with the same volumes.
ENTRYPOINT ["/bin/sh", "-c", "umask 0002; exec \"$@\"", "sh"]
CMD ["trackbed", "--help"]
USER 1000:0


FROM runtime AS cpu
COPY --from=environment-cpu /opt/venv /opt/venv
ENV DS_ACCELERATOR=cpu
# trackbed:begin declared
ENV \
    PYTHON_VERSION=3.11 \
    DEBIAN_VERSION=12 \
    PYTORCH_VERSION=2.13.0 \
    DEEPSPEED_VERSION=0.19.8 \
    DALI_VERSION=2.4.0 \
    TENSORBOARD_VERSION=2.21.0 \
    OPENMPI_VERSION=5.0.11 \
    MPI4PY_VERSION=4.1.2 \
    TRANSFORMERS_VERSION=5.24.0 \
    TRACKBED_RELEASE=26.11
LABEL \
      org.trackbed.python.version="3.11" \
      org.trackbed.debian.version="12" \
      org.trackbed.torch.version="2.13.0" \
      org.trackbed.deepspeed.version="0.19.8" \
      org.trackbed.dali.version="2.4.0" \
      org.trackbed.tensorboard.version="2.21.0" \
      org.trackbed.openmpi.version="5.0.11" \
      org.trackbed.mpi4py.version="4.1.2" \
      org.trackbed.transformers.version="5.24.0" \
      org.opencontainers.image.version="26.11"
# trackbed:end declared
COPY requirements/model.lock requirements/
COPY jobs jobs
# The source stays outside the image: only what setuptools installs from it is kept.
USER 0:0
RUN --mount=type=bind,target=/src,rw --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv \
    set -eux; \
    /opt/uv/bin/uv pip install --python /opt/venv/bin/python --no-cache --compile-bytecode --no-deps --no-build-isolation /src
USER 1000:0
