"""The public names, one import a line: `__init__.py` does an import when its name is first used."""

from delegate.accuracy.bounds import Verify as Verify
from delegate.compile import explain as explain
from delegate.compile import to_backend as to_backend
from delegate.compiled import CompiledProgram as CompiledProgram
from delegate.edge.conversations import cached_attention as cached_attention
from delegate.edge.sources import export as export
from delegate.errors import AccuracyError as AccuracyError
from delegate.errors import BackendBroken as BackendBroken
from delegate.errors import BackendError as BackendError
from delegate.errors import BackendFailed as BackendFailed
from delegate.errors import BackendIncompatible as BackendIncompatible
from delegate.errors import BackendNotFound as BackendNotFound
from delegate.errors import BackendUnavailable as BackendUnavailable
from delegate.errors import ConfigError as ConfigError
from delegate.errors import DelegateError as DelegateError
from delegate.errors import DeviceLost as DeviceLost
from delegate.errors import DialectError as DialectError
from delegate.errors import ExecutionError as ExecutionError
from delegate.errors import ExportError as ExportError
from delegate.errors import InputError as InputError
from delegate.errors import KernelError as KernelError
from delegate.errors import ListenerError as ListenerError
from delegate.errors import LoweringError as LoweringError
from delegate.errors import PartitionError as PartitionError
from delegate.errors import ProgramError as ProgramError
from delegate.events import listen as listen
from delegate.kernels.table import KernelTable as KernelTable
from delegate.partitioner.partitioner import Partitioner as Partitioner
from delegate.partitioner.saved import SavedPlan as SavedPlan
from delegate.placement.estimated import Estimated as Estimated
from delegate.placement.locked import Replay as Replay
from delegate.placement.measured import Measured as Measured
from delegate.placement.measured import Remote as Remote
from delegate.placement.policy import PlacementPolicy as PlacementPolicy
from delegate.placement.policy import SupportTable as SupportTable
from delegate.placement.strategy import ByPreference as ByPreference
from delegate.program.dtypes import DType as DType
from delegate.runtime.loaded import LoadedProgram as LoadedProgram
from delegate.runtime.loaded import load as load

__version__: str
