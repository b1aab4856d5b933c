"""Loggers: what sends the logs of runs somewhere, one run a vmapped seed."""

from ._base import Logger as Logger, LoggerState as LoggerState, RunInfo as RunInfo
from ._console import ConsoleLogger as ConsoleLogger
from ._mlflow import MLflowLogger as MLflowLogger
from ._multi import MultiLogger as MultiLogger
from ._neptune import NeptuneLogger as NeptuneLogger
from ._save import SaveLogger as SaveLogger
from ._tensorboard import TensorBoardLogger as TensorBoardLogger
from ._text import CSVLogger as CSVLogger, JSONLinesLogger as JSONLinesLogger
from ._trackio import TrackioLogger as TrackioLogger
from ._wandb import WandbLogger as WandbLogger
