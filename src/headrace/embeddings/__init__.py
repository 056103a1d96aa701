"""Embedding rows of recommendation models, at the trainers before a step needs them."""

from typing import TYPE_CHECKING

from headrace.embeddings.errors import EmbeddingError, ExampleError, JobError
from headrace.extras import require_metrics
from headrace.facades import deferred_names

if TYPE_CHECKING:
    from headrace.embeddings.changes import JobChange
    from headrace.embeddings.data.avazu import AvazuFormat
    from headrace.embeddings.data.criteo import CriteoFormat
    from headrace.embeddings.data.dense import DenseScale
    from headrace.embeddings.data.examples import Examples
    from headrace.embeddings.data.files import AvazuData, CriteoData, ExampleData, ParquetData
    from headrace.embeddings.data.loader import LoaderData
    from headrace.embeddings.data.parquet import ParquetFormat
    from headrace.embeddings.data.rejects import Rejects
    from headrace.embeddings.plan.commits import CommitTimes
    from headrace.embeddings.plan.plan import EmbeddingPlan
    from headrace.embeddings.plan.step import PredictedStep, StepCosts
    from headrace.embeddings.plan.traffic import StepBytes
    from headrace.embeddings.profile import (
        EmbeddingProfile,
        ExampleBytes,
        ProcessorSeconds,
        RowReuse,
        RowTransfers,
        StepRows,
        Synchronisation,
        TableAccesses,
    )
    from headrace.embeddings.run.entry import TrainingBatches, fit
    from headrace.embeddings.run.job.job_processes import ProcessKey
    from headrace.embeddings.run.job.job_times import JobTimes, TimesSample
    from headrace.embeddings.run.job.record import EmbeddingRecord
    from headrace.embeddings.run.step_times import (
        CacherTimes,
        ReaderTimes,
        ServerTimes,
        Sums,
        TrainerTimes,
    )
    from headrace.embeddings.run.trainers.metrics import EmbeddingMetrics, TimedBatches
    from headrace.embeddings.run.trainers.trainer_state import Stateful
    from headrace.embeddings.tables import EmbeddingTable, InitialValues, TableGroup

__all__ = [
    "AvazuData",
    "AvazuFormat",
    "CacherTimes",
    "CommitTimes",
    "CriteoData",
    "CriteoFormat",
    "DenseScale",
    "EmbeddingError",
    "EmbeddingMetrics",
    "EmbeddingPlan",
    "EmbeddingProfile",
    "EmbeddingRecord",
    "EmbeddingTable",
    "ExampleBytes",
    "ExampleData",
    "ExampleError",
    "Examples",
    "InitialValues",
    "JobChange",
    "JobError",
    "JobTimes",
    "LoaderData",
    "ParquetData",
    "ParquetFormat",
    "PredictedStep",
    "ProcessKey",
    "ProcessorSeconds",
    "ReaderTimes",
    "Rejects",
    "RowReuse",
    "RowTransfers",
    "ServerTimes",
    "Stateful",
    "StepBytes",
    "StepCosts",
    "StepRows",
    "Sums",
    "Synchronisation",
    "TableAccesses",
    "TableGroup",
    "TimedBatches",
    "TimesSample",
    "TrainerTimes",
    "TrainingBatches",
    "fit",
]

_MODULES = {
    "AvazuData": "data.files",
    "AvazuFormat": "data.avazu",
    "CacherTimes": "run.step_times",
    "CommitTimes": "plan.commits",
    "CriteoData": "data.files",
    "CriteoFormat": "data.criteo",
    "DenseScale": "data.dense",
    "EmbeddingMetrics": "run.trainers.metrics",
    "EmbeddingPlan": "plan.plan",
    "EmbeddingProfile": "profile",
    "EmbeddingRecord": "run.job.record",
    "EmbeddingTable": "tables",
    "ExampleBytes": "profile",
    "ExampleData": "data.files",
    "Examples": "data.examples",
    "InitialValues": "tables",
    "JobChange": "changes",
    "JobTimes": "run.job.job_times",
    "LoaderData": "data.loader",
    "ParquetData": "data.files",
    "ParquetFormat": "data.parquet",
    "PredictedStep": "plan.step",
    "ProcessKey": "run.job.job_processes",
    "ProcessorSeconds": "profile",
    "ReaderTimes": "run.step_times",
    "Rejects": "data.rejects",
    "RowReuse": "profile",
    "RowTransfers": "profile",
    "ServerTimes": "run.step_times",
    "Stateful": "run.trainers.trainer_state",
    "StepBytes": "plan.traffic",
    "StepCosts": "plan.step",
    "StepRows": "profile",
    "Sums": "run.step_times",
    "Synchronisation": "profile",
    "TableAccesses": "profile",
    "TableGroup": "tables",
    "TimedBatches": "run.trainers.metrics",
    "TimesSample": "run.job.job_times",
    "TrainerTimes": "run.step_times",
    "TrainingBatches": "run.entry",
    "fit": "run.entry",
}
_EXTRAS = {"EmbeddingMetrics": require_metrics}
__getattr__, __dir__ = deferred_names(__name__, __all__, _MODULES, _EXTRAS)
