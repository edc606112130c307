"""The backend `cuda`: NVIDIA's GPUs, by TVM Relax; compiled ahead of time, for the host's CPU as a stand-in too."""
