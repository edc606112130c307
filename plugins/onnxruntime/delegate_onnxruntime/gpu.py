"""The name `gpu`: the best of the backends here that drive GPUs."""

from __future__ import annotations

from delegate.backend.info import BackendAlias

INFO = BackendAlias(
    name="gpu",
    description="GPUs: NVIDIA's by TVM if there is one, else those of any vendor by WebGPU",
    stands_for=("cuda", "webgpu"),
)
