"""Rows of requests, and requests that are computed together: which, and whose answer is whose."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from stein.serve.rows import Asked, Predictor, _array
from stein.serve.together import BusyError, Together


def run(work: Callable[[Sequence[int]], list[Any]], asked: Callable[[Together], Any], **limits: int) -> Any:
    async def main() -> Any:
        together: Together = Together(work, **({"most": 100, "most_waiting": 1000} | limits))
        answering = asyncio.create_task(together.answer())
        try:
            return await asked(together)
        finally:
            answering.cancel()

    return asyncio.run(main())


def test_what_waits_while_others_are_computed_is_the_next_batch():
    """Catches a pause that waits for more, one batch per request, and answers that are exchanged."""
    batches, busy = [], threading.Event()

    def work(questions: Sequence[int]) -> list[int]:
        batches.append(list(questions))
        busy.wait(10)
        return [10 * question for question in questions]

    async def asked(together: Together) -> list[int]:
        first = asyncio.create_task(together.ask(0, 1))
        while not batches:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(together.ask(i, 1)) for i in range(1, 6)]
        await asyncio.sleep(0)
        busy.set()
        return await asyncio.gather(first, *others)

    assert run(work, asked, most=3) == [0, 10, 20, 30, 40, 50]
    assert batches == [[0], [1, 2, 3], [4, 5]]


def test_who_leaves_or_fails_does_not_disturb_the_others():
    busy = threading.Event()

    def work(questions: Sequence[int]) -> list[Any]:
        busy.wait(10)
        return [ValueError("odd") if question % 2 else question for question in questions]

    async def asked(together: Together) -> list[Any]:
        tasks = [asyncio.create_task(together.ask(i, 1)) for i in range(4)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        busy.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = run(work, asked)
    assert found[0] == 0
    assert [str(found[i]) for i in (1, 3)] == ["odd", "odd"]
    assert isinstance(found[2], asyncio.CancelledError)


def test_too_many_waiting_rows_are_refused_and_later_ones_are_not():
    async def asked(together: Together) -> int:
        waiting = asyncio.create_task(together.ask(1, 90))
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="90 rows are waiting"):
            await together.ask(2, 20)
        await waiting
        return await together.ask(3, 500)  # more than may wait, but nobody does

    assert run(list, asked, most_waiting=100) == 3


def test_a_request_that_cannot_be_predicted_does_not_spoil_those_beside_it():
    """Catches an error for everybody in the batch."""
    predictor: Any = object.__new__(Predictor)
    requests = [Asked(np.full((1, 1), value), None, np.zeros(1, bool), []) for value in (1.0, np.nan, 3.0)]

    def together(some: Sequence[Asked]) -> list[list[dict[str, float]]]:
        if any(np.isnan(one.x).any() for one in some):
            raise ValueError("not finite")
        return [[{"mean": one.x.item()}] for one in some]

    predictor._together = together
    first, second, third = predictor.predict(requests)
    assert (first, third) == ([{"mean": 1.0}], [{"mean": 3.0}])
    assert isinstance(second, ValueError)


@pytest.mark.parametrize("rows", [[[1.0]], [[1, 2], [3]], [[1, True]], [[1, "2"]], [[1, None]], [1, 2], [[[1], [2]]]])
def test_rows_without_names_are_arrays_of_numbers(rows):
    """Catches truth, text and gaps that NumPy makes into numbers, and rows of different lengths."""
    with pytest.raises(ValueError, match=r"must be arrays of numbers of shape \[2\]"):
        _array(rows, (2,))


def test_rows_of_numbers_are_taken():
    np.testing.assert_array_equal(_array([[1, 2.5], [-3, 1e300]], (2,)), [[1, 2.5], [-3, 1e300]])
