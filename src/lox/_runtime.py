"""The public names that need JAX.

Importing this module also registers everything that an event may need: the rules of the
traversal, the patches of JAX's own rules, and the handler of untransformed events.
"""

from . import _interpreter as _interpreter
from ._events.log import log as log
from ._events.log_grad import log_grad as log_grad
from ._events.stats import stats as stats
from ._events.watch import watch as watch
from ._host import callbacks as callbacks
from ._transforms.nolog import nolog as nolog
from ._transforms.observe import observe as observe
from ._transforms.progress import progress as progress
from ._transforms.save import save as save
from ._transforms.spool import spool as spool
from ._transforms.tap import tap as tap
