"""Storage: how files are written, where the user's cache is, and what small records are kept there."""

from sparsenn.storage.atomic import adding_to, check_replaceable, open_to_write, replacing
from sparsenn.storage.caches import CACHES, Cache, Cleared, cache_named, caches, clear
from sparsenn.storage.folder import cache_folder, make_cache_folder
from sparsenn.storage.paths import check_path, link_target, same_file
from sparsenn.storage.records import package_version, read_record, write_record
from sparsenn.storage.streams import is_stream
from sparsenn.storage.temporary import remove_stale

__all__ = [
    "CACHES",
    "Cache",
    "Cleared",
    "adding_to",
    "cache_folder",
    "cache_named",
    "caches",
    "check_path",
    "check_replaceable",
    "clear",
    "is_stream",
    "link_target",
    "make_cache_folder",
    "open_to_write",
    "package_version",
    "read_record",
    "remove_stale",
    "replacing",
    "same_file",
    "write_record",
]
