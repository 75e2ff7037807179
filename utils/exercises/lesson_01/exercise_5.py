"""Exercise 1.5: a test for the future."""

import math

import torch

from utils.exercises.engine import Exercise, randn
from utils.exercises.lesson_01.exercise_2 import attention
from utils.exercises.lesson_01.exercise_3 import masked_attention, past_mask
from utils.exercises.lesson_01.exercise_4 import (
    causal,
    causal_added_as_ones,
    causal_after_softmax,
    causal_attention,
    causal_no_scale,
    causal_sees_next,
    causal_without_self,
)

WORDS = 8  # in the sentences on which the reference tries a function


def reads_the_future(attend) -> bool:
    """The reference: change one word after another; does an earlier output move?"""
    x = randn(WORDS, 4, seed=0, dtype=torch.float64)
    before = attend(x, x, x)
    for word in range(1, WORDS):
        changed = x.clone()
        changed[word] = randn(4, seed=word, dtype=torch.float64)
        after = attend(changed, changed, changed)
        if not torch.allclose(after[:word], before[:word]):
            return True
    return False


def _reads(query, key, value, allowed):
    """Masked attention, where allowed(i, j) says whether query i may read key j."""
    i = torch.arange(query.shape[-2])[:, None]
    j = torch.arange(key.shape[-2])
    return masked_attention(query, key, value, allowed(i, j))


def past_and_self(query, key, value):
    return causal_attention(query, key, value)


def past_without_self(query, key, value):
    return causal_without_self(query, key, value)


def only_itself(query, key, value):
    return _reads(query, key, value, torch.eq)


def last_three_words(query, key, value):
    return _reads(query, key, value, lambda i, j: (j <= i) & (j > i - 3))


def past_without_scale(query, key, value):
    return causal_no_scale(query, key, value)


def past_colder_in_longer_texts(query, key, value):
    """Scores times the logarithm of the number of words, as some models do."""
    return causal_attention(query * math.log(1 + len(key)), key, value)


def every_word(query, key, value):
    return attention(query, key, value)


def one_word_ahead(query, key, value):
    return causal_sees_next(query, key, value)


def hidden_after_the_softmax(query, key, value):
    return causal_after_softmax(query, key, value)


def ones_added(query, key, value):
    return causal_added_as_ones(query, key, value)


def only_the_last_word_hidden(query, key, value):
    def allowed(i, j):
        return (j <= i) | (j < query.shape[-2] - 1)

    return _reads(query, key, value, allowed)


def only_the_last_word_shown(query, key, value):
    def allowed(i, j):
        return (j <= i) | (j == query.shape[-2] - 1)

    return _reads(query, key, value, allowed)


def first_word_peeks_at_the_second(query, key, value):
    return _reads(query, key, value, lambda i, j: (j <= i) | (i + j == 1))


def first_word_is_honest(query, key, value):
    return _reads(query, key, value, lambda i, j: (j <= i) | (i > 0))


def centred_values(query, key, value):
    return causal_attention(query, key, value - value.mean(dim=-2, keepdim=True))


def centred_queries(query, key, value):
    return causal_attention(query - query.mean(dim=-2, keepdim=True), key, value)


def two_words_ahead(query, key, value):
    return _reads(query, key, value, lambda i, j: (j <= i) | (j == i + 2))


def third_word_shown(query, key, value):
    return _reads(query, key, value, lambda i, j: (j <= i) | (j == 2))


def hidden_by_minus_five(query, key, value):
    past = past_mask(query.shape[-2], key.shape[-2])
    return causal(query, key, value, past, -5.0)


HONEST = (
    past_and_self,
    past_without_self,
    only_itself,
    last_three_words,
    past_without_scale,
    past_colder_in_longer_texts,
)


LEAKY = (
    every_word,
    one_word_ahead,
    hidden_after_the_softmax,
    ones_added,
    only_the_last_word_hidden,
    only_the_last_word_shown,
    first_word_peeks_at_the_second,
    first_word_is_honest,
    centred_values,
    centred_queries,
    two_words_ahead,
    third_word_shown,
    hidden_by_minus_five,
)


def future_trials(dtype):
    for honest in HONEST:
        yield {"attend": honest}
    for leaky in LEAKY:
        yield {"attend": leaky}


def _moved(attend, change, rows=slice(None)):
    """Whether `change(query, key, value, word)` moves an output before that word."""
    x = randn(WORDS, 4, seed=0, dtype=torch.float64)
    before = attend(x, x, x)
    for word in range(1, WORDS):
        after = attend(*change(x, x, x, word))
        if not torch.allclose(after[:word][rows], before[:word][rows]):
            return True
    return False


def _changed(x, word):
    changed = x.clone()
    changed[word:] += randn(*x[word:].shape, seed=word, dtype=x.dtype)
    return changed


def future_turned(attend):
    """True is to say that it DOES read the future; yours says the opposite."""
    return not reads_the_future(attend)


def future_turned_in_the_loop(attend):
    return not all(_moves_before(attend, word) for word in range(1, WORDS))


def future_always(attend):
    """You call every function a leak, even one that is right. The output of the
    changed word itself may move: compare the earlier ones alone. Start each time from a
    fresh x.clone(), and change it to ordinary numbers: 0 · inf and 0 · NaN are NaN."""
    return True


def future_never(attend):
    """You find no leak anywhere. Change a later word by much, in a clone (c = x is the
    same tensor), and compare what the words before it have read."""
    return False


def future_values_only(attend):
    """A later key can be felt without its value being read: through the sum that the
    softmax divides by. Change the keys as well."""
    return _moved(attend, lambda q, k, v, word: (q, k, _changed(v, word)))


def future_keys_not_changed(attend):
    return _moved(attend, lambda q, k, v, w: (_changed(q, w), k, _changed(v, w)))


def future_keys_only(attend):
    """The later values are read, too: change them as well."""
    return _moved(attend, lambda q, k, v, word: (q, _changed(k, word), v))


def future_values_not_changed(attend):
    return _moved(attend, lambda q, k, v, w: (_changed(q, w), _changed(k, w), v))


def future_last_word_only(attend):
    """A leak of any other word is not felt: change one word after another."""
    return _moves_before(attend, WORDS - 1)


def future_second_word_only(attend):  # as `return` in the loop, whatever it found
    return _moves_before(attend, 1)


def future_middle_word_only(attend):
    return _moves_before(attend, WORDS // 2)


def future_second_half_only(attend):
    return _moves_before(attend, WORDS // 2, WORDS)


def _moves_before(attend, word, stop=None):
    """Whether new words from `word` to `stop` move an output before them."""
    x = randn(WORDS, 4, seed=0, dtype=torch.float64)
    changed, stop = x.clone(), stop or word + 1
    changed[word:stop] = randn(stop - word, 4, seed=1, dtype=x.dtype)
    before, after = attend(x, x, x), attend(changed, changed, changed)
    return not torch.allclose(after[:word], before[:word])


def future_two_words(attend):
    """Two words are too few: some leaks need three. Try a longer text."""
    x = randn(2, 4, seed=0, dtype=torch.float64)
    changed = torch.stack([x[0], -x[1]])
    after = attend(changed, changed, changed)
    return not torch.allclose(after[0], attend(x, x, x)[0])


def future_cut_off(attend):
    """Without its later words a text is shorter, and a function may use its length.
    Leave the words there, and change what they are."""
    x = randn(WORDS, 4, seed=0, dtype=torch.float64)
    whole = attend(x, x, x)
    starts = (x[:words] for words in range(1, WORDS))
    return not all(torch.allclose(attend(s, s, s), whole[: len(s)]) for s in starts)


def future_last_cut_off(attend):
    x = randn(WORDS, 4, seed=0, dtype=torch.float64)
    start = x[:-1]
    return not torch.allclose(attend(start, start, start), attend(x, x, x)[:-1])


def future_first_output_only(attend):
    """Only the first output was compared: others may leak though the first does not."""

    def change(q, k, v, word):
        return (_changed(q, word),) * 3

    return _moved(attend, change, rows=slice(0, 1))


def future_first_word_kept(attend):
    return _moves_before(attend, 1, WORDS)


def future_queries_not_changed(attend):
    """A later query can be felt where queries are compared: change it as well."""

    def change(q, k, v, word):
        return q, _changed(k, word), _changed(v, word)

    return _moved(attend, change)


def future_queries_only(attend):
    """The later keys and values are read: change them as well."""
    return _moved(attend, lambda q, k, v, word: (_changed(q, word), k, v))


def future_without_last(attend):
    """A leak may be of one word alone: change each word but the first, the last too."""
    return any(_moves_before(attend, word) for word in range(1, WORDS - 1))


def future_from_the_third(attend):
    return any(_moves_before(attend, word) for word in range(2, WORDS))


def future_every_second_word(attend):
    return any(_moves_before(attend, word) for word in range(1, WORDS, 2))


def future_every_other_second_word(attend):
    return any(_moves_before(attend, word) for word in range(2, WORDS, 2))


def future_neighbour_only(attend):
    """Only the word just before the changed one was compared: a leak may go further."""
    x = randn(WORDS, 4, seed=0, dtype=torch.float64)
    before = attend(x, x, x)
    for word in range(1, WORDS):
        changed = x.clone()
        changed[word] = randn(4, seed=word, dtype=x.dtype)
        after = attend(changed, changed, changed)
        if not torch.allclose(after[word - 1], before[word - 1]):
            return True
    return False


def future_coarse(attend):
    """A leak may be small: compare up to rounding (torch.allclose), not to a tenth."""
    x = randn(WORDS, 4, seed=0, dtype=torch.float64)
    before = attend(x, x, x)
    for word in range(1, WORDS):
        changed = x.clone()
        changed[word] = randn(4, seed=word, dtype=x.dtype)
        after = attend(changed, changed, changed)
        if not torch.allclose(after[:word], before[:word], atol=0.1):
            return True
    return False


def future_past_changed(attend):
    """That an earlier word is felt later is what attention is for: change a later word,
    and look at the earlier ones."""
    x = randn(WORDS, 4, seed=0, dtype=torch.float64)
    changed = torch.cat([-x[:1], x[1:]])
    after = attend(changed, changed, changed)
    return not torch.allclose(after[1:], attend(x, x, x)[1:])


def future_shuffled(attend):
    """Later words that change places are still the same words: without a mask attention
    does not notice. Change what they are."""

    def change(q, k, v, word):
        turned = torch.cat([q[:word], q[word:].flip(0)])
        return (turned,) * 3

    return _moved(attend, change)


def future_compared_with_causal(attend):
    """A function may be honest and yet not be full causal attention, such as one with a
    window of three words. Ask only whether later words have an influence."""
    x = randn(WORDS, 4, seed=0, dtype=torch.float64)
    return not torch.allclose(attend(x, x, x), causal_attention(x, x, x))


EXERCISE = Exercise(
    "1.5",
    "A test for the future",
    reads_the_future,
    future_trials,
    {
        "True for every function": future_always,
        "False for every function": future_never,
        "the answer turned round": (future_turned, future_turned_in_the_loop),
        "the keys not changed": (future_values_only, future_keys_not_changed),
        "the values not changed": (future_keys_only, future_values_not_changed),
        "only one place changed": (
            future_last_word_only,
            future_second_word_only,
            future_middle_word_only,
            future_second_half_only,
        ),
        "not every place changed": (
            future_without_last,
            future_from_the_third,
            future_every_second_word,
            future_every_other_second_word,
        ),
        "the queries not changed": future_queries_not_changed,
        "only the queries changed": future_queries_only,
        "only the neighbour compared": future_neighbour_only,
        "a comparison too coarse": future_coarse,
        "the past changed, not the future": future_past_changed,
        "a text of two words": future_two_words,
        "later words cut off": (future_cut_off, future_last_cut_off),
        "only the first output compared": (
            future_first_output_only,
            future_first_word_kept,
        ),
        "the future only shuffled": future_shuffled,
        "compared with causal attention": future_compared_with_causal,
    },
    gradients=False,
)
