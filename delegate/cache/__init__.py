"""Every cache on disk, in one folder per user that processes share.

- `runtime/`: `folder.py` and `store.py` are the folder with files to be mapped, and entries by key. `environment.py`
  has the properties of the machine that keys contain. A program that loads and runs imports no more than these, so none
  of them imports torch.
- `aot/`: caches of artifacts, whole programs, placements and their costs, whose keys or values hold graphs of torch.

Four parts lie beside their users. `edge/keys.py` and `backend/region.py` turn exported programs and regions into
values, which support checks compare, too. `backend/isolated.py` records how compilers of one backend ended, and
`processes/probing.py` the answers of plugins. XNNPACK's packed weights are files in its own format, in
`backends/xnnpack/runtime/sharing.py`.
"""
