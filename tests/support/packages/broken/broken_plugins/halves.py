"""AOT halves: one that adds and multiplies, and those in which one method does wrong."""

from broken_plugins.faults import crash, fail, hang, leave, nonsense
from delegate.backend.aot import Backend, PreprocessResult
from delegate.verdict import YES, Reason, no

TAKES = {"aten.add.Tensor": "add", "aten.mul.Tensor": "multiply"}


class Adder(Backend):
    name = "adder"

    def check(self, node):
        if str(node.target) not in TAKES or len(node.all_input_nodes) != 2:
            return no(Reason.OPERATOR, "it adds and multiplies")
        return YES

    def preprocess(self, region):
        names = {n: i for i, n in enumerate((*region.inputs, *region.calls))}
        assert not region.constants
        rows = [[TAKES[str(n.target)], *(names[a] for a in n.args)] for n in region.calls]
        return PreprocessResult(b"", {"rows": rows, "outputs": [names[n] for n in region.outputs]})


def crash_at_mul(self, region):
    if any(str(n.target) == "aten.mul.Tensor" for n in region.calls):
        crash()
    return Adder.preprocess(self, region)


METHODS = {
    "made_error": {"__init__": fail},
    "made_crash": {"__init__": crash},
    "check_error": {"check": fail},
    "check_crash": {"check": crash},
    "check_hang": {"check": hang},
    "check_nonsense": {"check": nonsense},
    "claims_crash": {"claims": crash},
    "preprocess_error": {"preprocess": fail},
    "preprocess_crash": {"preprocess": crash},
    "preprocess_crash_at_mul": {"preprocess": crash_at_mul},
    "preprocess_hang": {"preprocess": hang},
    "preprocess_leaves": {"preprocess": leave},
    "preprocess_nonsense": {"preprocess": nonsense},
}
AT_RUN_TIME = ("prepare_error", "execute_error", "execute_nonsense", "close_error")
HEALTHY = ("healthy", "absent", "init_error", "init_nonsense", *AT_RUN_TIME)
globals().update(
    {n: type(n, (Adder,), {"name": n, "__module__": __name__, **METHODS.get(n, {})}) for n in (*METHODS, *HEALTHY)}
)
