"""How far results are from a reference, partition by partition, and the nodes that put them there."""
