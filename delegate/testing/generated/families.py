"""All families of samples by name."""

from __future__ import annotations

from hypothesis import strategies as st

from delegate.testing.generated.elementwise import activations, binaries, products
from delegate.testing.generated.images import adaptive_pools, convolutions, pads, pools, resizes, shuffles
from delegate.testing.generated.places import places
from delegate.testing.generated.programs import programs
from delegate.testing.generated.reductions import norms, reductions
from delegate.testing.generated.sample import Sample

FAMILIES: dict[str, st.SearchStrategy[Sample]] = {
    "pools": pools(),
    "adaptive pools": adaptive_pools(),
    "convolutions": convolutions(),
    "pads": pads(),
    "resizes": resizes(),
    "shuffles": shuffles(),
    "reductions": reductions(),
    "norms": norms(),
    "places": places(),
    "activations": activations(),
    "binaries": binaries(),
    "products": products(),
    "programs": programs(),
}
