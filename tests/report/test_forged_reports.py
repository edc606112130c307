"""Reports of strangers: a report is refused, or every form of it is made."""

from __future__ import annotations

import json

import pytest

from delegate.errors import ProgramError
from delegate.report import Report
from delegate.report.page import page
from tests.support.forged_reports import MANY, ODD, forged_reports, require_proportion, written


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_every_value_in_turn(odd):
    made = 0
    for forged in forged_reports(odd):
        assert page([forged.page_data("forged")]).endswith("</html>\n")
        assert Report.from_json(forged.to_json()).to_json() == forged.to_json()
        assert len(forged.nodes_table().lines()) == len(forged.nodes) + 1
        assert str(forged)
        made += 1
    assert made or odd == [[]]  # which no field may be


@pytest.mark.parametrize("kind", MANY)
def test_what_a_report_becomes_is_in_proportion(kind):
    forms = str, lambda r: str(r.nodes_table()), lambda r: json.dumps(r.page_data("x"))
    require_proportion(kind, [lambda report, form=form: form(report).encode() for form in forms])


def test_two_methods_of_one_name():
    with pytest.raises(ProgramError, match="two methods have the name 'm'"):
        Report.from_json(written(["m", "m"], []))
