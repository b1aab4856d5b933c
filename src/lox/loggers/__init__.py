"""Loggers that send runs to disk, the terminal or an experiment tracker.

Under `jax.vmap`, each lane is a separate run.
"""

from ._base import Logger as Logger, LoggerState as LoggerState, RunInfo as RunInfo
from ._console.logger import ConsoleLogger as ConsoleLogger
from ._multi import MultiLogger as MultiLogger
from ._save import SaveLogger as SaveLogger
from ._tensorboard.logger import TensorBoardLogger as TensorBoardLogger
from ._text import CSVLogger as CSVLogger, JSONLinesLogger as JSONLinesLogger
from ._trackers.mlflow import MLflowLogger as MLflowLogger
from ._trackers.neptune import NeptuneLogger as NeptuneLogger
from ._trackers.trackio import TrackioLogger as TrackioLogger
from ._trackers.wandb import WandbLogger as WandbLogger
