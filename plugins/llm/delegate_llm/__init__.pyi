"""The public names, one import a line: `__init__.py` does an import when its name is first used."""

from delegate_llm.aot.export import export as export
from delegate_llm.aot.export import measure_engines as measure_engines
from delegate_llm.aot.source import read as read
from delegate_llm.options import Options as Options
from delegate_llm.runtime.batch import Batch as Batch
from delegate_llm.runtime.chat import Chat as Chat
from delegate_llm.runtime.model import Conversation as Conversation
from delegate_llm.runtime.model import Model as Model
from delegate_llm.runtime.sampling import Sampler as Sampler
from delegate_llm.runtime.speculative import Speculation as Speculation
from delegate_llm.runtime.tokenizer import Text as Text
