"""Every cache on disk, in one folder per user that processes share.

- `runtime/`: `folder.py`, `store.py` and `files.py` are the folder, entries by key, and files to be mapped.
  `environment.py` has the properties of the machine that keys contain. `probes.py` has the answers of plugins.
- `aot/`: caches of artifacts, whole programs, placements and their costs. Their keys or values hold graphs of torch.

Three parts lie beside their only users. `edge/keys.py` and `backends/keys.py` compute keys from exported programs and
regions, which support checks compare, too. `backends/guarded.py` records outcomes of compilers. Packed weights are
files in XNNPACK's own format, in `backends/xnnpack/runtime/sharing.py`.
"""
