# As in NVIDIA's images: programs ask this variable whether there is a GPU to use at all.
if ! { [ -e "${TRACKBED_DEV:-/dev}/nvidiactl" ] || [ -e "${TRACKBED_DEV:-/dev}/dxg" ] ||
    [ -e "${TRACKBED_DEV:-/dev}/nvgpu" ]; }; then
    export NVIDIA_CPU_ONLY=1
fi
