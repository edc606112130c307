"""Accuracy of results against a reference, partition by partition, and the nodes that cause errors."""
