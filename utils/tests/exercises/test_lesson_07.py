"""Exercise 7.3: what is a number, and which kind."""

import torch

from utils.exercises import EXERCISES
from utils.exercises.engine import grade


def test_the_head_is_a_whole_number_however_it_is_held():
    exercise = EXERCISES["7.3"]

    def solved(kind):
        def answer(found, copies):
            head, *numbers = exercise.reference(found, copies)
            return kind(head), *numbers

        return grade(exercise, answer).solved

    assert solved(int) and solved(torch.tensor)
    assert not solved(float) and not solved(str)
