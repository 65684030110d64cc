"""Reports: what results and datasets look like as text, tables, pictures and JSON. They read; nothing is computed."""

from sparsenn.report.description import describe_dataset, describe_layers, describe_model
from sparsenn.report.ladder import draw_ladder, ladder_record, ladder_table
from sparsenn.report.plots import PLOT_SUFFIXES, draw_layers
from sparsenn.report.quantities import count, duration, rate
from sparsenn.report.records import to_json, to_record
from sparsenn.report.summary import summary
from sparsenn.report.tables import layer_table, variant_table
from sparsenn.report.training import (
    draw_losses,
    evaluation_summary,
    evaluation_text,
    loss_table,
    training_record,
    training_summary,
)
from sparsenn.report.verification import Verification, compare_categories

__all__ = [
    "PLOT_SUFFIXES",
    "Verification",
    "compare_categories",
    "count",
    "describe_dataset",
    "describe_layers",
    "describe_model",
    "draw_ladder",
    "draw_layers",
    "draw_losses",
    "duration",
    "evaluation_summary",
    "evaluation_text",
    "ladder_record",
    "ladder_table",
    "layer_table",
    "loss_table",
    "rate",
    "summary",
    "to_json",
    "to_record",
    "training_record",
    "training_summary",
    "variant_table",
]
