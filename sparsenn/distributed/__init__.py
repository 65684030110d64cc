"""Networks run by several devices at once: rows are independent, so that each device has the weights and some rows."""

from sparsenn.distributed.devices import Sessions, device_names, infer

__all__ = ["Sessions", "device_names", "infer"]
