"""The operators that torch tags as core, and those of them without a portable kernel."""

import torch

NUMBER = "gives a number, not a tensor: it is a size expression of the program, not a kernel call"
WITHOUT_KERNEL = {
    "aten._local_scalar_dense.default": NUMBER,
    "aten.sym_is_contiguous.default": NUMBER,
    "aten.sym_numel.default": NUMBER,
    "aten.sym_size.int": NUMBER,
    "aten.sym_storage_offset.default": NUMBER,
    "aten.sym_stride.int": NUMBER,
    "aten.resize_.default": "changes its argument; a functional graph has no such operator",
    "aten.atan2.out": "writes into an argument; a functional graph holds aten.atan2.default instead",
}


def core_operators():
    """Return the names of all operators that torch tags as core."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace == "aten":
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            if torch.Tag.core in op.tags:
                yield str(op)
