"""Reports: what results and datasets look like as text, tables, pictures and JSON. They read; nothing is computed."""

from sparsenn.report.architecture import architecture_table
from sparsenn.report.description import describe_dataset, describe_layers, describe_model
from sparsenn.report.inference import model_layer_table, model_record, model_summary
from sparsenn.report.ladder import draw_ladder, ladder_record, ladder_table
from sparsenn.report.plots import PLOT_SUFFIXES, draw_layers
from sparsenn.report.quantities import count, duration, rate
from sparsenn.report.records import to_json, to_record
from sparsenn.report.roofline import draw_roofline, roofline_record, roofline_table, roofs_record, roofs_table
from sparsenn.report.summary import summary
from sparsenn.report.tables import layer_table, variant_table
from sparsenn.report.training import (
    draw_losses,
    evaluation_text,
    loss_table,
    training_record,
    training_summary,
)
from sparsenn.report.tuning import tuned_record, tuned_table, tuning_record, tuning_tables
from sparsenn.report.verification import Verification, compare_categories

__all__ = [
    "PLOT_SUFFIXES",
    "Verification",
    "architecture_table",
    "compare_categories",
    "count",
    "describe_dataset",
    "describe_layers",
    "describe_model",
    "draw_ladder",
    "draw_layers",
    "draw_losses",
    "draw_roofline",
    "duration",
    "evaluation_text",
    "ladder_record",
    "ladder_table",
    "layer_table",
    "loss_table",
    "model_layer_table",
    "model_record",
    "model_summary",
    "rate",
    "roofline_record",
    "roofline_table",
    "roofs_record",
    "roofs_table",
    "summary",
    "to_json",
    "to_record",
    "training_record",
    "training_summary",
    "tuned_record",
    "tuned_table",
    "tuning_record",
    "tuning_tables",
    "variant_table",
]
