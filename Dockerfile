# One file for every release and both variants: `ARG RELEASE` decides every version, the target (cpu, gpu) the variant.
# Stages run from what changes least to what changes most, so that a change of code copies one layer and builds nothing.
#
#   --build-arg VENDOR=nvidia    target gpu: add NVIDIA's archives (GDRCopy, TensorRT, Nsight), verified by digest
#   --build-arg BASE_IMAGE=...   another image of the same Debian, or an NGC image: there only what is missing is added
#   --secret id=ca,src=...       certificates of your site; also `pip` and `uv` (configuration files) and `apt` (a list of
#                                sources) for its mirrors. A secret is there while a step runs and in no layer
# trackbed:begin arguments
ARG RELEASE=26.11
ARG BASE_IMAGE=debian:bookworm-slim
# trackbed:end arguments
ARG VENDOR=none


# The pins of one release, and what the build runs. Neither is in an image.
FROM scratch AS pins
ARG RELEASE
COPY requirements/${RELEASE} /
COPY requirements/boot.lock /


FROM scratch AS build
COPY image/build /


# What every stage stands on.
FROM ${BASE_IMAGE} AS base
USER 0:0
RUN --mount=type=bind,from=build,target=/build --mount=type=secret,id=ca --mount=type=secret,id=apt \
    /build/site /build/apt ca-certificates python3


# What a release's image declares, so that tools can read it without starting it. What a base image declares itself, as
# NVIDIA's do, it keeps.
# trackbed:begin declared
FROM base AS declared-23.06
ENV TRACKBED_RELEASE=23.06 \
    PYTHON_VERSION=${PYTHON_VERSION:-3.11} \
    DISTRIBUTION_VERSION=${DISTRIBUTION_VERSION:-12} \
    PYTORCH_VERSION=${PYTORCH_VERSION:-2.1.0} \
    DEEPSPEED_VERSION=${DEEPSPEED_VERSION:-0.9.5} \
    DALI_VERSION=${DALI_VERSION:-1.26.0} \
    TENSORBOARD_VERSION=${TENSORBOARD_VERSION:-2.9.0} \
    OPENMPI_VERSION=${OPENMPI_VERSION:-4.1.4} \
    MPI4PY_VERSION=${MPI4PY_VERSION:-3.1.4} \
    TRANSFORMERS_VERSION=${TRANSFORMERS_VERSION:-4.30.2}
LABEL org.trackbed.python.version="${PYTHON_VERSION}" \
    org.trackbed.distribution.version="${DISTRIBUTION_VERSION}" \
    com.nvidia.pytorch.version="${PYTORCH_VERSION}" \
    org.trackbed.deepspeed.version="${DEEPSPEED_VERSION}" \
    com.nvidia.dali.version="${DALI_VERSION}" \
    org.trackbed.tensorboard.version="${TENSORBOARD_VERSION}" \
    com.nvidia.openmpi.version="${OPENMPI_VERSION}" \
    org.trackbed.mpi4py.version="${MPI4PY_VERSION}" \
    org.trackbed.transformers.version="${TRANSFORMERS_VERSION}"
FROM base AS declared-23.07
ENV TRACKBED_RELEASE=23.07 \
    PYTHON_VERSION=${PYTHON_VERSION:-3.11} \
    DISTRIBUTION_VERSION=${DISTRIBUTION_VERSION:-12} \
    PYTORCH_VERSION=${PYTORCH_VERSION:-2.1.0} \
    DEEPSPEED_VERSION=${DEEPSPEED_VERSION:-0.9.5} \
    DALI_VERSION=${DALI_VERSION:-1.27.0} \
    TENSORBOARD_VERSION=${TENSORBOARD_VERSION:-2.9.0} \
    OPENMPI_VERSION=${OPENMPI_VERSION:-4.1.4} \
    MPI4PY_VERSION=${MPI4PY_VERSION:-3.1.4} \
    TRANSFORMERS_VERSION=${TRANSFORMERS_VERSION:-4.30.2}
LABEL org.trackbed.python.version="${PYTHON_VERSION}" \
    org.trackbed.distribution.version="${DISTRIBUTION_VERSION}" \
    com.nvidia.pytorch.version="${PYTORCH_VERSION}" \
    org.trackbed.deepspeed.version="${DEEPSPEED_VERSION}" \
    com.nvidia.dali.version="${DALI_VERSION}" \
    org.trackbed.tensorboard.version="${TENSORBOARD_VERSION}" \
    com.nvidia.openmpi.version="${OPENMPI_VERSION}" \
    org.trackbed.mpi4py.version="${MPI4PY_VERSION}" \
    org.trackbed.transformers.version="${TRANSFORMERS_VERSION}"
FROM base AS declared-26.11
ENV TRACKBED_RELEASE=26.11 \
    PYTHON_VERSION=${PYTHON_VERSION:-3.11} \
    DISTRIBUTION_VERSION=${DISTRIBUTION_VERSION:-12} \
    PYTORCH_VERSION=${PYTORCH_VERSION:-2.13.0} \
    DEEPSPEED_VERSION=${DEEPSPEED_VERSION:-0.19.8} \
    DALI_VERSION=${DALI_VERSION:-2.4.0} \
    TENSORBOARD_VERSION=${TENSORBOARD_VERSION:-2.21.0} \
    OPENMPI_VERSION=${OPENMPI_VERSION:-5.0.11} \
    MPI4PY_VERSION=${MPI4PY_VERSION:-4.1.2} \
    TRANSFORMERS_VERSION=${TRANSFORMERS_VERSION:-5.24.0}
LABEL org.trackbed.python.version="${PYTHON_VERSION}" \
    org.trackbed.distribution.version="${DISTRIBUTION_VERSION}" \
    com.nvidia.pytorch.version="${PYTORCH_VERSION}" \
    org.trackbed.deepspeed.version="${DEEPSPEED_VERSION}" \
    com.nvidia.dali.version="${DALI_VERSION}" \
    org.trackbed.tensorboard.version="${TENSORBOARD_VERSION}" \
    com.nvidia.openmpi.version="${OPENMPI_VERSION}" \
    org.trackbed.mpi4py.version="${MPI4PY_VERSION}" \
    org.trackbed.transformers.version="${TRANSFORMERS_VERSION}"
# trackbed:end declared


# Where things are, for any user id: group 0 may write what its owner may, and nothing looks a name up. No file makes its
# user another one.
FROM declared-${RELEASE} AS runtime
RUN --mount=type=bind,from=build,target=/build --mount=type=bind,from=pins,target=/pins \
    --mount=type=secret,id=ca --mount=type=secret,id=apt \
    set -eux; \
    if ! command -v mpirun; then /build/site /build/apt $(grep -v '^#' /pins/apt.txt); fi; \
    find / -xdev -type f -perm /6000 -exec chmod a-s {} +; \
    install -d -m 2775 -o 1000 -g 0 \
        /var/lib/trackbed \
        /var/lib/trackbed/cache \
        /var/lib/trackbed/cache/data \
        /var/lib/trackbed/cache/models \
        /var/lib/trackbed/cache/models/huggingface \
        /var/lib/trackbed/runs
ENV PATH=/opt/trackbed/bin:/opt/venv/bin:${PATH} \
    HOME=/tmp \
    LOGNAME=trackbed \
    USER=trackbed \
    PIP_CONSTRAINT=/opt/venv/constraint.txt \
    PIP_NO_CACHE_DIR=1 \
    UV_CONSTRAINT=/opt/venv/constraint.txt \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DO_NOT_TRACK=1 \
    HF_HOME=/var/lib/trackbed/cache/models/huggingface \
    HF_HUB_DISABLE_TELEMETRY=1 \
    TENSORBOARD_PORT=6006 \
    TRACKBED_CACHE=/var/lib/trackbed/cache \
    TRACKBED_REQUIREMENTS=/opt/trackbed/requirements \
    TRACKBED_RUNS=/var/lib/trackbed/runs
WORKDIR /opt/trackbed
EXPOSE 6006
ENTRYPOINT ["/opt/trackbed/entrypoint"]


# The compiler and the installer, which no image carries.
FROM base AS installer
RUN --mount=type=bind,from=build,target=/build --mount=type=bind,from=pins,target=/pins \
    --mount=type=secret,id=ca --mount=type=secret,id=apt --mount=type=secret,id=pip \
    set -eux; \
    /build/site /build/apt build-essential python3-dev python3-venv zstd; \
    if ! command -v mpicc; then /build/site /build/apt $(grep -v '^#' /pins/apt-build.txt); fi; \
    python3 -m venv /opt/uv; \
    /build/site /opt/uv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r /pins/boot.lock


FROM installer AS packages-cpu
# Where the CPU build of torch comes from. An image that carries wheels says so in UV_FIND_LINKS, and they win.
ARG UV_TORCH_BACKEND=cpu
RUN --mount=type=bind,from=build,target=/build --mount=type=bind,from=pins,target=/pins \
    --mount=type=secret,id=ca --mount=type=secret,id=uv --mount=type=cache,target=/root/.cache/uv \
    if [ -n "${UV_FIND_LINKS:-}" ]; then unset UV_TORCH_BACKEND; fi; \
    /build/site /build/packages cpu


FROM installer AS packages-gpu
RUN --mount=type=bind,from=build,target=/build --mount=type=bind,from=pins,target=/pins \
    --mount=type=secret,id=ca --mount=type=secret,id=uv --mount=type=cache,target=/root/.cache/uv \
    /build/site /build/packages gpu


FROM runtime AS environment-cpu
COPY --from=packages-cpu /opt/venv /opt/venv


FROM runtime AS environment-gpu
COPY --from=packages-gpu /opt/venv /opt/venv
COPY --from=packages-gpu /opt/libraries /opt/libraries
RUN find /opt/libraries -name '*.so*' -printf '%h\n' | sort -u >/etc/ld.so.conf.d/libraries.conf; ldconfig; \
    rm -f /var/cache/ldconfig/aux-cache
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility


# NVIDIA's own archives, for --build-arg VENDOR=nvidia. One that has no digest, or another one, ends the build.
FROM installer AS vendor-files
ARG RELEASE
ARG VENDOR_MIRROR
COPY platform/trackbed/__init__.py platform/trackbed/errors.py /src/trackbed/
COPY platform/trackbed/release /src/trackbed/release
RUN --mount=type=bind,from=build,target=/build \
    --mount=type=secret,id=ca --mount=type=cache,target=/var/cache/vendor \
    PYTHONPATH=/src PYTHONDONTWRITEBYTECODE=1 \
    /build/site python3 -m trackbed.release.vendor "$RELEASE" /opt/vendor /var/cache/vendor


FROM environment-gpu AS overlay
COPY --from=vendor-files /opt/vendor /opt/vendor
RUN --mount=type=bind,from=build,target=/build --mount=type=bind,from=pins,target=/pins \
    --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv \
    --mount=type=secret,id=ca --mount=type=secret,id=uv --mount=type=cache,target=/root/.cache/uv \
    /build/site /build/overlay
ENV PATH=/opt/vendor/bin:${PATH}


# What a GPU image declares, without NVIDIA's archives and with them.
# trackbed:begin declared-gpu
FROM environment-gpu AS gpu-23.06-none
ENV CUDA_VERSION=${CUDA_VERSION:-12.1.1} \
    CUDNN_VERSION=${CUDNN_VERSION:-8.9.2.26} \
    NCCL_VERSION=${NCCL_VERSION:-2.18.1} \
    CUDA_DRIVER_MINIMUM=${CUDA_DRIVER_MINIMUM:-530.30.02} \
    TRT_VERSION=${TRT_VERSION:-8.6.0}
LABEL org.trackbed.cuda.version="${CUDA_VERSION}" \
    com.nvidia.cudnn.version="${CUDNN_VERSION}" \
    com.nvidia.nccl.version="${NCCL_VERSION}" \
    org.trackbed.driver.version="${CUDA_DRIVER_MINIMUM}" \
    com.nvidia.tensorrt.version="${TRT_VERSION}"
FROM overlay AS gpu-23.06-nvidia
ENV CUDA_VERSION=${CUDA_VERSION:-12.1.1} \
    CUDNN_VERSION=${CUDNN_VERSION:-8.9.2.26} \
    NCCL_VERSION=${NCCL_VERSION:-2.18.1} \
    CUDA_DRIVER_MINIMUM=${CUDA_DRIVER_MINIMUM:-530.30.02} \
    GDRCOPY_VERSION=${GDRCOPY_VERSION:-2.3} \
    TRT_VERSION=${TRT_VERSION:-8.6.1.6} \
    NSIGHT_SYSTEMS_VERSION=${NSIGHT_SYSTEMS_VERSION:-2023.2.3.1001} \
    NSIGHT_COMPUTE_VERSION=${NSIGHT_COMPUTE_VERSION:-2023.1.1.4}
LABEL org.trackbed.cuda.version="${CUDA_VERSION}" \
    com.nvidia.cudnn.version="${CUDNN_VERSION}" \
    com.nvidia.nccl.version="${NCCL_VERSION}" \
    org.trackbed.driver.version="${CUDA_DRIVER_MINIMUM}" \
    com.nvidia.gdrcopy.version="${GDRCOPY_VERSION}" \
    com.nvidia.tensorrt.version="${TRT_VERSION}" \
    com.nvidia.nsightsystems.version="${NSIGHT_SYSTEMS_VERSION}" \
    com.nvidia.nsightcompute.version="${NSIGHT_COMPUTE_VERSION}"
FROM environment-gpu AS gpu-23.07-none
ENV CUDA_VERSION=${CUDA_VERSION:-12.1.1} \
    CUDNN_VERSION=${CUDNN_VERSION:-8.9.2.26} \
    NCCL_VERSION=${NCCL_VERSION:-2.18.1} \
    CUDA_DRIVER_MINIMUM=${CUDA_DRIVER_MINIMUM:-530.30.02} \
    TRT_VERSION=${TRT_VERSION:-8.6.0}
LABEL org.trackbed.cuda.version="${CUDA_VERSION}" \
    com.nvidia.cudnn.version="${CUDNN_VERSION}" \
    com.nvidia.nccl.version="${NCCL_VERSION}" \
    org.trackbed.driver.version="${CUDA_DRIVER_MINIMUM}" \
    com.nvidia.tensorrt.version="${TRT_VERSION}"
FROM overlay AS gpu-23.07-nvidia
ENV CUDA_VERSION=${CUDA_VERSION:-12.1.1} \
    CUDNN_VERSION=${CUDNN_VERSION:-8.9.2.26} \
    NCCL_VERSION=${NCCL_VERSION:-2.18.1} \
    CUDA_DRIVER_MINIMUM=${CUDA_DRIVER_MINIMUM:-530.30.02} \
    GDRCOPY_VERSION=${GDRCOPY_VERSION:-2.3} \
    TRT_VERSION=${TRT_VERSION:-8.6.1.6} \
    NSIGHT_SYSTEMS_VERSION=${NSIGHT_SYSTEMS_VERSION:-2023.2.3.1001} \
    NSIGHT_COMPUTE_VERSION=${NSIGHT_COMPUTE_VERSION:-2023.1.1.4}
LABEL org.trackbed.cuda.version="${CUDA_VERSION}" \
    com.nvidia.cudnn.version="${CUDNN_VERSION}" \
    com.nvidia.nccl.version="${NCCL_VERSION}" \
    org.trackbed.driver.version="${CUDA_DRIVER_MINIMUM}" \
    com.nvidia.gdrcopy.version="${GDRCOPY_VERSION}" \
    com.nvidia.tensorrt.version="${TRT_VERSION}" \
    com.nvidia.nsightsystems.version="${NSIGHT_SYSTEMS_VERSION}" \
    com.nvidia.nsightcompute.version="${NSIGHT_COMPUTE_VERSION}"
FROM environment-gpu AS gpu-26.11-none
ENV CUDA_VERSION=${CUDA_VERSION:-13.0} \
    CUDNN_VERSION=${CUDNN_VERSION:-9.20.0.48} \
    NCCL_VERSION=${NCCL_VERSION:-2.29.7} \
    CUDA_DRIVER_MINIMUM=${CUDA_DRIVER_MINIMUM:-580}
LABEL org.trackbed.cuda.version="${CUDA_VERSION}" \
    com.nvidia.cudnn.version="${CUDNN_VERSION}" \
    com.nvidia.nccl.version="${NCCL_VERSION}" \
    org.trackbed.driver.version="${CUDA_DRIVER_MINIMUM}"
FROM overlay AS gpu-26.11-nvidia
ENV CUDA_VERSION=${CUDA_VERSION:-13.0} \
    CUDNN_VERSION=${CUDNN_VERSION:-9.20.0.48} \
    NCCL_VERSION=${NCCL_VERSION:-2.29.7} \
    CUDA_DRIVER_MINIMUM=${CUDA_DRIVER_MINIMUM:-580} \
    GDRCOPY_VERSION=${GDRCOPY_VERSION:-2.5.1} \
    TRT_VERSION=${TRT_VERSION:-11.0.0.114} \
    TORCH_TENSORRT_VERSION=${TORCH_TENSORRT_VERSION:-2.13.0} \
    NSIGHT_SYSTEMS_VERSION=${NSIGHT_SYSTEMS_VERSION:-2025.3.2.474} \
    NSIGHT_COMPUTE_VERSION=${NSIGHT_COMPUTE_VERSION:-2025.3.1.4}
LABEL org.trackbed.cuda.version="${CUDA_VERSION}" \
    com.nvidia.cudnn.version="${CUDNN_VERSION}" \
    com.nvidia.nccl.version="${NCCL_VERSION}" \
    org.trackbed.driver.version="${CUDA_DRIVER_MINIMUM}" \
    com.nvidia.gdrcopy.version="${GDRCOPY_VERSION}" \
    com.nvidia.tensorrt.version="${TRT_VERSION}" \
    org.trackbed.torch-tensorrt.version="${TORCH_TENSORRT_VERSION}" \
    com.nvidia.nsightsystems.version="${NSIGHT_SYSTEMS_VERSION}" \
    com.nvidia.nsightcompute.version="${NSIGHT_COMPUTE_VERSION}"
# trackbed:end declared-gpu


# The program itself, the same for every variant: its text, its bytecode, the templates, the pins it stands on.
FROM base AS code
ARG RELEASE
COPY platform/trackbed /opt/trackbed/lib/trackbed
RUN python3 -m compileall -q --invalidation-mode checked-hash /opt/trackbed/lib
COPY image/entrypoint /opt/trackbed/
COPY image/entrypoint.d /opt/trackbed/entrypoint.d
COPY image/bin /opt/trackbed/bin
COPY jobs /opt/trackbed/jobs
COPY requirements/model.lock requirements/data.lock /opt/trackbed/requirements/
COPY requirements/${RELEASE} /opt/trackbed/requirements/${RELEASE}


FROM environment-cpu AS cpu
ENV TRACKBED_VARIANT=cpu
COPY --from=code /opt/trackbed /opt/trackbed
USER 1000:0
ARG RELEASE
ARG REVISION=unknown
ENV TRACKBED_REVISION=${REVISION}
LABEL org.opencontainers.image.title="Trackbed" \
    org.opencontainers.image.description="Training platform reference stack, CPU" \
    org.opencontainers.image.version="${RELEASE}" \
    org.opencontainers.image.revision="${REVISION}"


FROM gpu-${RELEASE}-${VENDOR} AS gpu
ENV TRACKBED_VARIANT=gpu
COPY --from=code /opt/trackbed /opt/trackbed
USER 1000:0
ARG RELEASE
ARG REVISION=unknown
ENV TRACKBED_REVISION=${REVISION}
LABEL org.opencontainers.image.title="Trackbed" \
    org.opencontainers.image.description="Training platform reference stack, NVIDIA GPUs" \
    org.opencontainers.image.version="${RELEASE}" \
    org.opencontainers.image.revision="${REVISION}"
