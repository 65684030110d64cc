"""The memory that copies of rows hold for later ones."""

from sparsenn.backends.cuda.transfer import copies
from sparsenn.backends.cuda.transfer.copies import Transfer


def pinned_bytes(transfer: Transfer) -> int:
    pieces = transfer._pieces_up, transfer._pieces_down, transfer._pieces_waiting
    return copies.PIECE_BYTES * sum(each._made for each in pieces)


def device_bytes(transfer: Transfer) -> int:
    return sum(block.size for block in transfer._blocks)
