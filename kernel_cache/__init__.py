"""Bytes under content keys, kept on disk for every process of a machine and, if wished, shared with other
machines. An entry is whole or a miss; what is in the folder will be run, so only its owner may write it
(DESIGN.md).
"""

from dlcb.kernel_cache import bundle
from dlcb.kernel_cache.bundle import Bundle
from dlcb.kernel_cache.errors import (
    BundleError,
    CacheError,
    FolderError,
    LockTimeout,
    RemoteError,
    UnsafeFolder,
    UnwritableFolder,
)
from dlcb.kernel_cache.evict import POLICIES, Record
from dlcb.kernel_cache.key import Key, explain
from dlcb.kernel_cache.layers import LayeredStore, default_folder, open_store
from dlcb.kernel_cache.lock import single_flight
from dlcb.kernel_cache.pins import model_owner
from dlcb.kernel_cache.store import Store
from dlcb.kernel_cache.upkeep import CheckReport, Listing, Statistics, check, ls, prune, stat

__all__ = [
    "POLICIES",
    "Bundle",
    "BundleError",
    "CacheError",
    "CheckReport",
    "FolderError",
    "Key",
    "LayeredStore",
    "Listing",
    "LockTimeout",
    "Record",
    "RemoteError",
    "Statistics",
    "Store",
    "UnsafeFolder",
    "UnwritableFolder",
    "bundle",
    "check",
    "default_folder",
    "explain",
    "ls",
    "model_owner",
    "open_store",
    "prune",
    "single_flight",
    "stat",
]
