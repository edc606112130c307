"""What backends of vendors' libraries share: infinities, NaN and zeros, long sums, and layers in integers."""
