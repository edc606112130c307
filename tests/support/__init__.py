"""What tests of several packages share: models, inputs, comparisons, backends with faults."""
