"""Tests of wheels and source distributions, and of the files that describe a release."""
