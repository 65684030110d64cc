"""PyTorch modules with a forward of their own: the graph that `torch.export` makes of them, for any number of rows.

What is computed from weights and constants alone is computed by PyTorch. What is left must lead from the inputs to the
outputs; sums, products and concatenations may combine branches.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import OutputKind

from sparsenn.errors import InputError, prefix_errors
from sparsenn.io.importers.combinations import slices_of_inputs
from sparsenn.io.importers.signal import Signal
from sparsenn.io.importers.torch.aten import ROWS_COUNT, Made, apply_operator
from sparsenn.io.importers.torch.movements import ROWS
from sparsenn.printable import reason_of

_SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool)


def exported(
    module: Any, example: Sequence[Any] | Mapping[str, Any], make_input: Callable[[tuple[int, ...]], Signal]
) -> tuple[dict[str, Signal], dict[str, Signal]]:
    """Return a module's inputs and what it makes of them, by their names."""
    name = type(module).__name__
    positional, named = ((), dict(example)) if isinstance(example, Mapping) else (tuple(example), {})
    is_program = isinstance(module, torch.export.ExportedProgram)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that pruning assigns weights
        program = _without_mutation(module) if is_program else _export(name, module, positional, named)
    signature = program.graph_signature
    if signature.buffers_to_mutate:
        changed = ", ".join(sorted(signature.buffers_to_mutate.values()))
        raise InputError(f"{name}: changes its buffers ({changed}) when it is called; a network stays as it is")
    parameters = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    known: dict[Any, Any] = {}  # nodes that do not depend on the input
    placeholders = [
        node for node in program.graph.nodes if node.op == "placeholder" and node.name in signature.user_inputs
    ]
    for node in placeholders:
        tensor = node.meta["val"]
        if not (isinstance(tensor, torch.Tensor) and tensor.ndim > 1 and isinstance(tensor.shape[0], torch.SymInt)):
            raise InputError(
                f"{name}: its input {node.name!r} has no open number of rows; export it with dynamic_shapes that say "
                '{0: torch.export.Dim("rows")} of each input'
            )
        if not all(isinstance(size, int) for size in tensor.shape[1:]):
            raise InputError(
                f"{name}: its input {node.name!r} of shape {tuple(tensor.shape)} has open sizes besides the number of "
                "rows; export it with these fixed"
            )
    inputs = slices_of_inputs({node.name: make_input(tuple(node.meta["val"].shape[1:])) for node in placeholders})
    signals: dict[Any, Any] = {node: inputs[node.name] for node in placeholders}
    rows, outputs = placeholders[0].meta["val"].shape[0], dict[str, Signal]()
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in parameters:
            tensors = program.constants if parameters[node.name] in program.constants else program.state_dict
            known[node] = tensors[parameters[node.name]]
        elif node.op == "output":
            kinds = [spec.kind for spec in signature.output_specs]
            results = [each for each, kind in zip(node.args[0], kinds, strict=True) if kind is OutputKind.USER_OUTPUT]
            if any(result not in signals for result in results):
                raise InputError(f"{name}: gives an output that does not depend on its input")
            structure = program.call_spec.out_spec
            is_flat = structure.num_leaves == len(results)
            names = output_names(structure.unflatten(range(len(results)))) if is_flat else []
            if len(names) != len(results):
                raise InputError(
                    f"{name}: gives {len(results)} outputs, some within others; give a module without them"
                )
            outputs = {output: signals[result] for output, result in zip(names, results, strict=True)}
        elif not (
            node in signals
            # nodes that compute a size, or assert something of one
            or str(node.target).startswith("aten._assert")
            or isinstance(node.meta.get("val"), _SIZES)
        ):
            with prefix_errors(_place(node)):
                if any(each in signals for each in node.all_input_nodes):
                    signals[node] = _make_signal(node, signals, known, rows)
                else:
                    known[node] = _compute_constant(node, known)
    return inputs, outputs


def output_names(outputs: Any) -> list[str]:
    """Return what a module's outputs are called: keys of a dictionary, fields of a named tuple, or numbered."""
    if isinstance(outputs, Mapping):
        return list(map(str, outputs))
    if isinstance(outputs, tuple | list):
        return list(getattr(outputs, "_fields", (f"output_{number}" for number in range(len(outputs)))))
    return ["output"]


def _export(name: str, module: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return a module as a graph for any number of rows, in which no operator changes a tensor in place."""
    try:
        rows = torch.export.Dim("rows")
        shapes: Any = {each: {0: rows} for each in named} if named else tuple({0: rows} for _ in positional)
        program = torch.export.export(
            module,
            tuple(map(of_several_rows, positional)),
            {each: of_several_rows(batch) for each, batch in named.items()},
            dynamic_shapes=shapes,
        )
        return _without_mutation(program)
    except Exception as error:  # of any kind: the module's own code runs
        reason = reason_of(error)
        if reason.startswith("Constraints violated"):
            reason = "it computes with the number of rows of the example, or mixes rows"
        raise InputError(f"torch.export cannot make a graph of {name}: {reason}") from error


def _without_mutation(program: Any) -> Any:
    schemas = (getattr(node.target, "_schema", None) for node in program.graph.nodes)
    if any(getattr(schema, "is_mutable", False) for schema in schemas):
        return program.run_decompositions({})
    return program


def of_several_rows(batch: Any) -> Any:
    """Return a batch of more than one row, which `torch.export` takes for a special case."""
    return batch if len(batch) > 1 else batch.new_zeros((2, *batch.shape[1:]))


def _compute_constant(node: Any, known: dict[Any, Any]) -> Any:
    if any(each not in known for each in node.all_input_nodes):
        raise InputError("computes with the number of rows; no layer of sparsenn does")
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        raise InputError("draws random numbers at each call; a network computes the same each time")
    arguments, options = torch.fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
    try:
        return node.target(*arguments, **options)
    except Exception as error:
        raise InputError(f"cannot be computed beforehand ({reason_of(error)})") from error


def _make_signal(node: Any, signals: dict[Any, Any], known: dict[Any, Any], rows: Any) -> Made:
    """Return what one operator makes of what others gave: a signal, or a list of several."""
    if node.target is operator.getitem:
        results: Made = signals[node.args[0]]
        if isinstance(results, Signal) and node.args[1] == 0:  # the first of several results is the signal
            return results
        if isinstance(results, list):
            found: Signal = results[node.args[1]]
            return found
    if not isinstance(node.target, torch._ops.OpOverload):
        raise InputError("has no counterpart in sparsenn; give a module without it")
    values, options = torch.fx.node.map_arg(
        (node.args, node.kwargs), lambda each: signals[each] if each in signals else known.get(each, ROWS_COUNT)
    )
    schema = node.target._schema
    arguments = {argument.name: argument.default_value for argument in schema.arguments}
    arguments.update(zip(arguments, values, strict=False))
    arguments.update(options)
    value = node.meta["val"]
    tensors = list(value) if isinstance(value, tuple | list) else [value]
    shapes = [tuple(_size(size, rows) for size in tensor.shape) for tensor in tensors]
    made = apply_operator(schema, arguments, shapes[0])
    for signal, tensor, shape in zip(made if isinstance(made, list) else [made], tensors, shapes, strict=False):
        if not tensor.dtype.is_floating_point:
            raise InputError(f"computes {tensor.dtype}; layers compute floating-point numbers")
        if signal.full(ROWS) != shape:
            raise InputError(f"makes a tensor of shape {shape}; sparsenn's layers would make {signal.full(ROWS)}")
    return made


def _size(size: Any, rows: Any) -> int:
    """Return a size of a tensor; `ROWS` for the number of rows, and for what is computed from that."""
    if isinstance(size, int):
        return size
    return ROWS if size.node.expr == rows.node.expr else ROWS - 1


def _place(node: Any) -> str:
    stack = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
    path = str(stack[-1]) if stack else ""
    return f"{node.name if not path or path.startswith('_') else path} ({node.target})"
