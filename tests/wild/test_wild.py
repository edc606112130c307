"""Some random models on what every machine with the tests has; `python -m tests.wild.run` tries more, elsewhere too."""

from __future__ import annotations

import pytest

from tests.wild.models import model
from tests.wild.run import case

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's of padding, of norms without use, of masks


@pytest.mark.parametrize("number", range(6))
def test_random_models_give_what_eager_gives(number: int) -> None:
    assert case(number, ["portable", "xnnpack"]) is None


def test_a_model_is_the_same_at_every_run() -> None:
    first, second = model(5), model(5)
    assert [s.name for s in first.steps] == [s.name for s in second.steps]
    assert (first.outputs, first.sizes, first.others) == (second.outputs, second.sizes, second.others)
