"""Seeds and noise are splitmix64."""

import torch

from kgfast.rng import GOLDEN, Stream, mix, scrambled, signed


def test_mix_is_splitmix64():
    # The first outputs of splitmix64 from state 0 (Vigna's splitmix64.c), shifted to 63 bits.
    assert mix(0) == 0xE220A8397B1DCDAF >> 1
    assert len({mix(a, b) for a in range(-3, 30) for b in range(-3, 30)}) == 33**2
    assert all(0 <= mix(a) < 2**63 for a in (-5, 2**63, 2**80))


def test_words_are_scrambled_as_seeds_are():
    state = torch.tensor([signed(GOLDEN)], dtype=torch.int64)
    assert int(scrambled(state)) == signed(0xE220A8397B1DCDAF)
    counters = torch.arange(-500, 500, dtype=torch.int64)
    assert len(scrambled(counters).unique()) == 1000
    word = int(scrambled(torch.tensor([7 + signed(GOLDEN)])))
    assert (word % 2**64) >> 1 == mix(7)


def test_each_stream_has_a_number_of_its_own():
    assert len({int(it) for it in Stream}) == len(Stream.__members__)
