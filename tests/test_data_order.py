"""The order of samples: a permutation of every epoch, the same for everybody, split without loss over any world."""

from __future__ import annotations

import numpy as np
import pytest

from trackbed.data.order import Order, Share, uniform
from trackbed.data.pipeline import agreed_step
from trackbed.errors import DataError

EPOCHS = 3


@pytest.mark.parametrize("window", [0, 1, 16, 50, 1000])
@pytest.mark.parametrize("size", [1, 7, 100, 101])
def test_every_epoch_has_every_sample_once(size: int, window: int) -> None:
    order = Order(size, seed=3, window=window)
    epochs = [order.at(epoch * size, size) for epoch in range(EPOCHS)]
    for taken in epochs:
        assert sorted(taken) == list(range(size))
    assert size < 10 or len({tuple(taken) for taken in epochs}) == EPOCHS


@pytest.mark.parametrize("window", [0, 32])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_share_every_epoch_without_loss(world: int, window: int) -> None:
    size, rows = 35, 2
    order = Order(size, seed=0, window=window)
    steps = -(-size * EPOCHS // (world * rows))
    taken = [order.at(Share(rank, world, rows).begins(step, 0), rows) for step in range(steps) for rank in range(world)]
    stream = np.concatenate(taken)[: size * EPOCHS]
    assert [sorted(epoch) for epoch in stream.reshape(EPOCHS, size)] == [list(range(size))] * EPOCHS


def test_parts_of_a_step_do_not_overlap() -> None:
    shares = [Share(rank, world=2, rows=3, accumulate=2) for rank in range(2)]
    begins = sorted(share.begins(1, part) for share in shares for part in range(2))
    assert begins == [12, 15, 18, 21]
    assert shares[0].step == 12


def test_any_position_can_be_asked_for_without_those_before() -> None:
    whole = Order(1000, seed=5, window=64).at(0, 3000)
    assert Order(1000, seed=5, window=64).at(2345, 100).tolist() == whole[2345:2445].tolist()


def test_a_window_bounds_how_far_apart_reads_are() -> None:
    order = Order(1600, seed=1, window=160)
    for start in range(0, 1600, 160):
        assert len({int(number) // 10 for number in order.at(start, 160)}) == 16
    assert sorted(order.at(0, 160)) != list(range(160))


def test_without_shuffle_the_order_is_that_of_the_files() -> None:
    assert Order(5, seed=0, shuffle=False).at(3, 4).tolist() == [3, 4, 0, 1]


def test_no_sample_is_an_error() -> None:
    with pytest.raises(DataError, match="no sample"):
        Order(0, seed=0)


def test_a_checkpoint_without_a_place_in_the_data_is_refused() -> None:
    """As those of earlier versions are, whose order was another one."""
    with pytest.raises(DataError, match="start a new run"):
        agreed_step({}, digest="0" * 64)


def test_random_numbers_depend_on_sample_epoch_and_seed_alone() -> None:
    numbers, epochs = np.arange(1000), np.zeros(1000, dtype=np.int64)
    drawn = uniform(numbers, epochs, seed=7, draws=4)
    assert drawn.shape == (1000, 4)
    assert (uniform(numbers[500:], epochs[500:], seed=7, draws=4) == drawn[500:]).all()
    assert (uniform(numbers, epochs + 1, seed=7, draws=4) != drawn).all()
    assert (uniform(numbers, epochs, seed=8, draws=4) != drawn).all()


def test_random_numbers_are_uniform_and_unrelated() -> None:
    drawn = uniform(np.arange(20_000), np.full(20_000, 2), seed=0, draws=3)
    counts = np.histogram(drawn, bins=10, range=(0, 1))[0]
    assert counts.sum() == drawn.size
    assert abs(counts / drawn.size - 0.1).max() < 0.005
    assert abs(np.corrcoef(drawn.T) - np.eye(3)).max() < 0.03
    assert abs(np.corrcoef(drawn[1:, 0], drawn[:-1, 0])[0, 1]) < 0.03
