"""Some random models on what every machine with the tests has; `python -m tests.wild.run` tries more, elsewhere too."""

from __future__ import annotations

import pytest
import torch

import delegate
from tests.support.lowering import answers
from tests.support.sampling import every
from tests.wild.models import model
from tests.wild.run import case

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's of padding, of norms without use, of masks

# Number of a model -> how many nodes XNNPACK runs, and how many it refuses for each reason.
ON_XNNPACK: dict[int, dict[str, int]] = {
    0: {"runs": 8, "dtype": 3, "dynamic_shape": 2, "operator": 3, "attribute": 1, "too_small": 1},
    1: {"runs": 7, "dtype": 1, "rank": 1},
    2: {"runs": 5, "operator": 1, "attribute": 1},
    3: {"runs": 5, "dtype": 8, "border": 1, "operator": 5},
    4: {"runs": 9, "operator": 6, "dtype": 2, "attribute": 1, "inaccurate": 1, "rank": 1},
    5: {"runs": 5, "dynamic_shape": 1},
}


@pytest.mark.parametrize("number", every(2, ON_XNNPACK))
def test_random_models_give_what_eager_gives(number: int) -> None:
    assert case(number, ["portable", "xnnpack"]) is None
    made = model(number)
    exported = torch.export.export(made.module(), made.example(), dynamic_shapes=made.dynamic_shapes())
    assert answers(delegate.to_backend(exported, "xnnpack"), "xnnpack") == ON_XNNPACK[number]


def test_a_model_is_the_same_at_every_run() -> None:
    first, second = model(5), model(5)
    assert [s.name for s in first.steps] == [s.name for s in second.steps]
    assert (first.outputs, first.sizes, first.others) == (second.outputs, second.sizes, second.others)
