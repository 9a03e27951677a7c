"""GPUs, what connects them, and NVIDIA's libraries; skipped, with the reason, where there are none."""
