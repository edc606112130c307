"""A placement policy of your own: the one backend that supports most of the work runs it, and kernels run the rest.

    python examples/placement/one_backend.py

Data then passes no border between two libraries.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

import delegate


class OneBackend(delegate.PlacementPolicy):
    """A policy that uses one backend only."""

    def place(self, table: delegate.SupportTable) -> delegate.SavedPlan:
        """Return the plan of the backend with the most supported work; the first one of equals."""
        work = Counter(dict.fromkeys(table.backends, 0))
        for node in table.nodes:
            work.update(dict.fromkeys(node.supported_by, node.work))
        best = max(table.backends, key=work.__getitem__, default="")
        return table.plan(lambda node: best if best in node.supported_by else None)


def main() -> None:
    """Lower a small model by the policy, and print the backend of each node."""
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8), nn.Tanh()).eval()
    exported = torch.export.export(model, (torch.randn(4, 8),))
    print(delegate.to_backend(exported, placement=OneBackend()).report)


if __name__ == "__main__":
    main()
