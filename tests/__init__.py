"""Tests of `delegate`: a folder tests the package of the same name, and a file here a module outside of packages.

Other folders:

deviations: a sweep of every operator of every backend for differences from torch.
docs: the code of tutorials and how-to pages runs, and generated references are complete.
e2e: whole programs, through all packages.
examples: the programs in examples/, run as their pages say.
hostile: forged program files, and calls of kernels that must not crash.
mutation: product code broken on purpose, which the tests must notice.
release: wheels and source distributions, and the files that describe a release.
support: helpers that the tests of several folders share.
"""
