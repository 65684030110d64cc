"""Storage: how files are written, where the user's cache is, and its small records."""

from sparsenn.runtime.storage.atomic import adding_to, check_replaceable, is_stream, open_to_write, replacing
from sparsenn.runtime.storage.caches import CACHES, Cache, Cleared, cache_named, caches, clear, remove_files
from sparsenn.runtime.storage.folder import cache_folder, make_cache_folder
from sparsenn.runtime.storage.paths import check_path, link_target, same_file
from sparsenn.runtime.storage.records import file_sha256, package_version, read_record, write_record

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
    "file_sha256",
    "is_stream",
    "link_target",
    "make_cache_folder",
    "open_to_write",
    "package_version",
    "read_record",
    "remove_files",
    "replacing",
    "same_file",
    "write_record",
]
