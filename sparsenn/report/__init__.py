"""Reports: what results and datasets look like as text, tables, pictures and JSON. They read; nothing is computed.

Results of studies are reported by `benchmark`, `ladder` and `roofline`, which import the studies.
"""

from sparsenn.report.architecture import architecture_table
from sparsenn.report.description import describe_dataset, describe_layers, describe_model
from sparsenn.report.inference import model_layer_table, model_record, model_summary
from sparsenn.report.planned import plan_record, plan_table
from sparsenn.report.plots import PLOT_SUFFIXES, draw_layers
from sparsenn.report.quantities import count, duration, rate
from sparsenn.report.records import to_json, to_record
from sparsenn.report.summary import Verification, compare_categories, summary
from sparsenn.report.tables import kernel_table, layer_table
from sparsenn.report.training import (
    draw_losses,
    evaluation_text,
    loss_table,
    training_record,
    training_summary,
)

__all__ = [
    "PLOT_SUFFIXES",
    "Verification",
    "architecture_table",
    "compare_categories",
    "count",
    "describe_dataset",
    "describe_layers",
    "describe_model",
    "draw_layers",
    "draw_losses",
    "duration",
    "evaluation_text",
    "kernel_table",
    "layer_table",
    "loss_table",
    "model_layer_table",
    "model_record",
    "model_summary",
    "plan_record",
    "plan_table",
    "rate",
    "summary",
    "to_json",
    "to_record",
    "training_record",
    "training_summary",
]
