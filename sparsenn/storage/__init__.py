"""Storage: how files are written, where the user's cache is, and what small records are kept there."""

from sparsenn.storage.atomic import adding_to, open_to_write, replacing
from sparsenn.storage.folder import cache_folder
from sparsenn.storage.paths import check_path
from sparsenn.storage.records import package_version, read_record, write_record

__all__ = [
    "adding_to",
    "cache_folder",
    "check_path",
    "open_to_write",
    "package_version",
    "read_record",
    "replacing",
    "write_record",
]
