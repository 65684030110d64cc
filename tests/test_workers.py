"""Threads: order, nesting, errors."""

import os
import threading

import pytest

from sparsenn.workers import chunks, map_threads, thread_count


def test_results_keep_their_order():
    assert map_threads(lambda item: item * item, range(50)) == [item * item for item in range(50)]


def test_work_may_use_threads_itself():
    """More outer items than threads, each waiting for inner ones: a pool that waits for itself would never end."""

    def outer(item: int) -> int:
        return sum(map_threads(lambda part: item * part, range(10)))

    assert map_threads(outer, range(4 * thread_count())) == [45 * item for item in range(4 * thread_count())]


def test_one_item_stays_in_this_thread():
    assert map_threads(lambda _: threading.current_thread(), [0]) == [threading.current_thread()]
    assert map_threads(lambda item: item, []) == []


def test_an_error_in_a_thread_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        map_threads(lambda item: 1 // item, [1, 0, 2])


def test_threads_are_at_most_the_cores_of_this_process():
    assert 1 <= thread_count() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("total", "size", "expected"),
    [(0, 3, []), (3, 3, [(0, 3)]), (7, 3, [(0, 3), (3, 6), (6, 7)])],
)
def test_chunks_cover_everything_once(total, size, expected):
    assert chunks(total, size) == expected
